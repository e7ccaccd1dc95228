package images

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/product"
)

// Names of the images.
const (
	PauseName  = "gpucdi.dev/pause:1"
	DebianName = "docker.io/library/debian:bookworm-slim"
	golangName = "docker.io/library/golang:1.26-bookworm"
	AgentName  = "docker.io/gpucdi/gpucdi:dev"
)

// Pause returns an archive of the sandbox image, which contains one static program.
func Pause(ctx context.Context) (string, error) {
	dir, err := tools.Build(ctx, tools.Pause)
	if err != nil {
		return "", err
	}
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	return b.archive(ctx, "pause-"+filepath.Base(dir), PauseName, func(ctx context.Context) error {
		return b.commit(ctx, PauseName, "scratch", filepath.Join(dir, "pause"), "/", "--entrypoint", `["/pause"]`)
	})
}

// Debian returns an archive of a minimal Debian 12.
func Debian(ctx context.Context) (string, error) {
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	return b.archive(ctx, "debian", DebianName, b.debian)
}

// Agent returns an archive of the agent's image, built from the working tree with the repository's Dockerfile.
func Agent(ctx context.Context) (string, error) {
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	repository, key, err := workingTree(ctx)
	if err != nil {
		return "", err
	}
	if product.RaceEnabled() {
		key += "-race"
	}
	archive, err := b.archive(ctx, "agent-"+key, AgentName, func(ctx context.Context) error { return b.agent(ctx, repository) })
	if err != nil {
		return "", err
	}
	return archive, b.prune("agent-*.tar")
}

// workingTree returns the directory of the repository and a cache key for its state.
func workingTree(ctx context.Context) (repository, key string, err error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return "", "", err
	}
	repository = filepath.Dir(module)
	if key, err = digest(repository); err != nil {
		return "", "", fmt.Errorf("hashing %s: %w", repository, err)
	}
	return repository, key, nil
}

func (b *builder) debian(ctx context.Context) error {
	root, err := Debian12.Tar(ctx)
	if err != nil {
		return err
	}
	return b.commit(ctx, DebianName, "scratch", root, "/", "--cmd", `["bash"]`, "--env", "PATH="+path)
}

// golang creates the Dockerfile's build image, unless the store has it, from the root Compiler and this machine's Go.
// The label "key" of the image identifies both.
func (b *builder) golang(ctx context.Context) error {
	plain, key := "localhost/"+compilerKey, compilerKey+" "+runtime.Version()
	label, err := output(b.command(ctx, "inspect", "--type", "image", "--format", "{{.OCIv1.Config.Labels.key}}", golangName))
	if err == nil && label == key {
		return nil
	}
	root, err := Compiler.Tar(ctx)
	if err != nil {
		return err
	}
	goroot, err := output(exec.CommandContext(ctx, "go", "env", "GOROOT"))
	if err != nil {
		return err
	}
	if err := b.commit(ctx, plain, "scratch", root, "/"); err != nil {
		return err
	}
	return b.commit(ctx, golangName, plain, goroot, "/usr/local/go",
		"--env", "PATH=/usr/local/go/bin:"+path, "--env", "GOTOOLCHAIN=local", "--env", "GOPATH=/go", "--label", "key="+key)
}

// has reports whether the store has an image.
func (b *builder) has(ctx context.Context, name string) bool {
	return b.run(ctx, "inspect", "--type", "image", name) == nil
}

// agent builds the agent's image from the Dockerfile. Modules come from this machine's cache, so the build needs no
// network. Race reports are written to /dev: every pod has it, and the agent's pod mounts the node's.
func (b *builder) agent(ctx context.Context, repository string) error {
	if !b.has(ctx, DebianName) {
		if err := b.debian(ctx); err != nil {
			return err
		}
	}
	if err := b.golang(ctx); err != nil {
		return err
	}
	download := exec.CommandContext(ctx, "go", "mod", "download")
	download.Dir = repository
	if _, err := output(download); err != nil {
		return fmt.Errorf("downloading modules: %w", err)
	}
	modules, err := output(exec.CommandContext(ctx, "go", "env", "GOMODCACHE"))
	if err != nil {
		return err
	}
	built, err := output(exec.CommandContext(ctx, "go", "env", "GOCACHE"))
	if err != nil {
		return err
	}
	err = b.run(ctx, "build", "--isolation", "chroot", "--network", "host", "--pull-never", "--tag", AgentName,
		"--build-arg", product.GoFlags(), "--env", product.RaceLog("/dev"),
		"--volume", modules+":/go/pkg/mod:ro", "--volume", built+":/root/.cache/go-build", repository)
	if err != nil {
		return err
	}
	// Remove the previous image of this name.
	return b.run(ctx, "rmi", "--prune", "--force")
}

// output runs a command and returns its stdout. The error contains its stderr.
func output(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
