package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// makeRelease runs make release in $1, a copy of the working tree with its own Git repository, since a release requires
// a commit. It exports the image for this machine's architecture to the archive $2 with the name $3.
const makeRelease = `set -e
tar --exclude=./.git --exclude=./bin --exclude=./dist --create . | tar --extract --directory "$1"
cd "$1"
git init --quiet
git add --all
git -c user.name=release -c user.email=release@example.com commit --quiet --message release
make --no-print-directory release
skopeo copy --quiet oci-archive:$(ls dist/*_image.tar) "docker-archive:$2:$3"`

// Release returns an archive of the agent's image as built by make release from the working tree.
func Release(ctx context.Context) (string, error) {
	if err := tools.InstallPackages(ctx, "skopeo"); err != nil {
		return "", err
	}
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	repository, key, err := workingTree(ctx)
	if err != nil {
		return "", err
	}
	archive := filepath.Join(b.cache, "release-"+key+".tar")
	err = once(ctx, archive, func(temporary string) error {
		checkout, err := os.MkdirTemp("/var/tmp", "gpucdi-release-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(checkout)
		cmd := exec.CommandContext(ctx, "sh", "-c", makeRelease, "sh", checkout, temporary, AgentName)
		cmd.Dir = repository
		_, err = output(cmd)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("building the release image: %w", err)
	}
	return archive, b.prune("release-*.tar")
}
