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
	create := func(name string, age time.Duration) string {
		dir := filepath.Join(b.cache, name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "dist"), 0o700), os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	create("agent-1.tar", 2*keepFor)
	create("release-1.dir", 2*keepFor)
	create("release-1.dir.lock", 2*keepFor)
	create("release-2.dir", keepFor/2)
	used := create("release-3.dir", 2*keepFor)
	if err := once(t.Context(), used, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.prune("release-*.dir"); err != nil {
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
	if want := []string{"agent-1.tar", "release-1.dir.lock", "release-2.dir", "release-3.dir"}; !slices.Equal(left, want) {
		t.Errorf("prune left %q, want %q", left, want)
	}
}
