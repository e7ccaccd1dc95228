package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// ReleaseVersion is the version of the release that MakeRelease builds.
const ReleaseVersion = "v9.9.9"

// makeRelease runs make release in the new directory $1, a copy of the working tree with its own Git repository, since a
// release requires a commit. The hash of the commit is reproducible.
const makeRelease = `set -e
mkdir -p "$1"
tar --exclude=./.git --exclude=./bin --exclude=./dist --create . | tar --extract --directory "$1"
cd "$1"
export GIT_AUTHOR_NAME=release GIT_AUTHOR_EMAIL=release@example.com GIT_AUTHOR_DATE=2026-01-01T00:00:00Z
export GIT_COMMITTER_NAME=release GIT_COMMITTER_EMAIL=release@example.com GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
git init --quiet
git add --all
git commit --quiet --message release
git tag "$2"
make --no-print-directory release`

// keepRelease moves the release in the directory $1 to the new directory $2, and exports its image for this machine's
// architecture with the name $3.
const keepRelease = `set -e
mkdir "$2"
mv "$1/dist" "$2/"
skopeo copy --quiet oci-archive:$(ls "$2"/dist/*_image.tar) "docker-archive:$2/image.tar:$3"`

// MakeRelease runs make release from the working tree in a new directory, in which it creates dist.
func MakeRelease(ctx context.Context, dir string) error {
	repository, _, err := workingTree(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", makeRelease, "sh", dir, ReleaseVersion)
	cmd.Dir = repository
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("making a release: %w", err)
	}
	return nil
}

// Release returns an archive of the agent's image as built by make release from the working tree.
func Release(ctx context.Context) (string, error) {
	dir, err := release(ctx)
	return filepath.Join(dir, "image.tar"), err
}

// ReleaseFiles returns the directory with the files of make release from the working tree.
func ReleaseFiles(ctx context.Context) (string, error) {
	dir, err := release(ctx)
	return filepath.Join(dir, "dist"), err
}

// release returns the directory of keepRelease in the cache.
func release(ctx context.Context) (dir string, err error) {
	if err := tools.InstallPackages(ctx, "skopeo"); err != nil {
		return "", err
	}
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	_, key, err := workingTree(ctx)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(b.cache, "release-"+key+".dir")
	err = once(ctx, dir, func(temporary string) error {
		checkout, err := os.MkdirTemp("/var/tmp", "gpucdi-release-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(checkout)
		if err := MakeRelease(ctx, checkout); err != nil {
			return err
		}
		_, err = output(exec.CommandContext(ctx, "sh", "-c", keepRelease, "sh", checkout, temporary, AgentName))
		return err
	})
	if err != nil {
		return "", err
	}
	return dir, b.prune("release-*.dir")
}
