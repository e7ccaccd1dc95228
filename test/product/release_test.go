package product_test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Release builds are reproducible in any directory, and contain the programs for their architecture.
func TestRelease(t *testing.T) {
	if err := tools.InstallPackages(t.Context(), "qemu-user-static", "skopeo"); err != nil {
		t.Fatal(err)
	}
	kept, err := images.ReleaseFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkout := filepath.Join(t.TempDir(), "another/place")
	if err := images.MakeRelease(t.Context(), checkout); err != nil {
		t.Fatal(err)
	}
	dist := filepath.Join(checkout, "dist")
	first, second := textOf(t, filepath.Join(kept, "SHA256SUMS")), textOf(t, filepath.Join(dist, "SHA256SUMS"))
	if first != second || strings.Count(first, "\n") != 6 {
		t.Errorf("checksums of two builds:\n%s\n%s", first, second)
	}
	in(t, dist, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	pushed := push(t, dist)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			dir := filepath.Join(dist, "gpucdi_"+images.ReleaseVersion+"_linux_"+arch)
			in(t, dist, "tar", "--extract", "--file", dir+".tar.gz")
			root := unpackImage(t, pushed, arch)
			for _, program := range []string{"gpucdi", "gpucdi-nvml", "gpucdi-hook"} {
				checkProgram(t, filepath.Join(dir, program), machine)
				in(t, dist, "cmp", filepath.Join(dir, program), filepath.Join(root, "usr/bin", program))
			}
			checkSBOM(t, filepath.Join(dist, "gpucdi_"+images.ReleaseVersion+"_image_"+arch+".cdx.json"), "libc6", "busybox-static", "google.golang.org/grpc")
			runImage(t, root, arch)
		})
	}
}

// push pushes the image with the command in docs/deploy.md, to a directory instead of a registry.
func push(t *testing.T, dist string) (layout string) {
	t.Helper()
	commands, err := docs.Blocks(t.Context(), "docs/deploy.md", "Build and push the image", "sh")
	if err != nil {
		t.Fatal(err)
	}
	layout = filepath.Join(t.TempDir(), "registry")
	command := strings.NewReplacer("docker://YOUR-REGISTRY/gpucdi", "oci:"+layout, "VERSION", images.ReleaseVersion).Replace(commands[0])
	in(t, filepath.Dir(dist), "sh", "-ec", command)
	return layout
}

// unpackImage unpacks the image for an architecture from an OCI image layout.
func unpackImage(t *testing.T, layout, arch string) (root string) {
	t.Helper()
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	var index, manifest struct{ Manifests, Layers []descriptor }
	read := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(textOf(t, name)), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	read(filepath.Join(layout, "index.json"), &index)
	read(blob(index.Manifests[0]), &index)
	root = t.TempDir()
	for _, m := range index.Manifests {
		if m.Platform.Architecture != arch {
			continue
		}
		read(blob(m), &manifest)
		for _, layer := range manifest.Layers {
			in(t, root, "tar", "--extract", "--gzip", "--file", blob(layer))
		}
	}
	return root
}

// runImage runs the programs in the root of an image, with QEMU for arm64.
func runImage(t *testing.T, root, arch string) {
	t.Helper()
	run := []string{root}
	if arch == "arm64" {
		in(t, root, "cp", "/usr/bin/qemu-aarch64-static", "emulator")
		run = append(run, "/emulator")
	}
	if out := in(t, root, "chroot", append(run, "/usr/bin/gpucdi", "version")...); out != "gpucdi "+images.ReleaseVersion+"\n" {
		t.Errorf("gpucdi version prints %s", out)
	}
	// gpucdi-nvml is linked against glibc.
	if out := in(t, root, "chroot", append(run, "/usr/bin/gpucdi-nvml", "--help")...); !strings.Contains(out, "-library") {
		t.Errorf("gpucdi-nvml --help prints %s", out)
	}
	if out := in(t, root, "chroot", append(run, "/bin/sh", "-c", "echo a shell")...); out != "a shell\n" {
		t.Errorf("the shell prints %s", out)
	}
	if arch != runtime.GOARCH {
		return // the simulated driver is built for the native architecture
	}
	host := filepath.Join(root, "host")
	if _, err := simdriver.Install(host, simdriver.GTX1060x2()); err != nil {
		t.Fatal(err)
	}
	out := in(t, root, "unshare", "--mount", "sh", "-ec", "mkdir proc && mount --bind /proc proc && "+
		"NVSIM_DEV=/host/dev chroot . /usr/bin/gpucdi list --host-root /host")
	if strings.Count(out, "GTX 1060") != 2 {
		t.Errorf("gpucdi list prints %s", out)
	}
}

// checkProgram checks the architecture and the SBOM of a program.
func checkProgram(t *testing.T, program string, machine elf.Machine) {
	t.Helper()
	image, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if image.Machine != machine {
		t.Errorf("%s is for %s, want %s", program, image.Machine, machine)
	}
	checkSBOM(t, program+".cdx.json")
}

// checkSBOM checks that an SBOM has the version of the release, and components with these names.
func checkSBOM(t *testing.T, file string, names ...string) {
	t.Helper()
	var bom struct {
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal([]byte(textOf(t, file)), &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Component.Version != images.ReleaseVersion || len(bom.Components) == 0 {
		t.Errorf("%s: %+v", file, bom)
	}
	for _, name := range names {
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version string }) bool { return c.Name == name && c.Version != "" }) {
			t.Errorf("%s lacks %s", file, name)
		}
	}
}

// in runs a program in a directory and returns its output.
func in(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func textOf(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
