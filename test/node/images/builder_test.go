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

// A kept release must not outlive the files that it contains.
func TestDigest(t *testing.T) {
	repository := t.TempDir()
	digestWith := func(file string) string {
		name := filepath.Join(repository, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte("text"), 0o600)); err != nil {
			t.Fatal(err)
		}
		sum, err := digest(repository)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	previous := ""
	for _, file := range []string{"go.mod", "README.md", "CHANGELOG.md", "LICENSE", "deploy/gpucdi.yaml", "release/image.sh"} {
		sum := digestWith(file)
		if sum == previous {
			t.Errorf("%s does not change the digest", file)
		}
		previous = sum
	}
	for _, file := range []string{".git/HEAD", "bin/gpucdi", "docs/nri.md", "test/go.mod", "deploy/gpucdi/Chart.yaml", "dra/claim_test.go"} {
		if digestWith(file) != previous {
			t.Errorf("%s changes the digest", file)
		}
	}
}
