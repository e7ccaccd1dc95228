package images

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestPrune(t *testing.T) {
	b := &builder{cache: t.TempDir()}
	write := func(name string, age time.Duration) string {
		file := filepath.Join(b.cache, name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("agent-1.tar", 2*keepFor)
	write("release-1.tar", 2*keepFor)
	write("release-1.tar.lock", 2*keepFor)
	write("release-2.tar", keepFor/2)
	used := write("release-3.tar", 2*keepFor)
	if err := once(t.Context(), used, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.prune("release-*.tar"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"agent-1.tar", "release-1.tar.lock", "release-2.tar", "release-3.tar"}; !slices.Equal(left, want) {
		t.Errorf("prune left %q, want %q", left, want)
	}
}
