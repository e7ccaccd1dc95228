package container_test

import (
	"os"
	"path"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Jetson and WSL2 are simulated by their files and device nodes. Programs find CUDA without ldconfig in the container,
// and may open the device nodes.
func TestContainerPlatforms(t *testing.T) {
	t.Parallel()
	libs := "/" + simdriver.LibraryDir
	for _, p := range []struct {
		class, node string
		device      string // the CDI name
		libcuda     string
		write       map[string]string
	}{
		{
			class: "tegra", node: "/dev/nvmap", device: "nvidia.com/tegra=0", libcuda: libs + "/tegra/libcuda.so.1.1",
			write: map[string]string{
				"/etc/nvidia-container-runtime/host-files-for-container.d/drivers.csv": "lib, " + libs + "/tegra/libcuda.so.1.1\n",
			},
		},
		{
			class: "wsl", node: "/dev/dxg", device: "nvidia.com/wsl=all", libcuda: "/usr/lib/wsl/lib/libcuda.so.1",
			write: map[string]string{"/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef/nvcubins.bin": ""},
		},
	} {
		t.Run(p.class, func(t *testing.T) {
			m := start(t, container.Config{})
			libcuda, err := os.ReadFile(m.Path(libs + "/libcuda.so.1"))
			if err != nil {
				t.Fatal(err)
			}
			p.write[p.libcuda] = string(libcuda)
			for name, content := range p.write {
				if err := os.MkdirAll(path.Dir(m.Path(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(m.Path(name), []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// The node has the device number of /dev/null, which every kernel has.
			if err := unix.Mknod(m.Path(p.node), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
				t.Fatal(err)
			}
			generate(t, m, "--class", p.class)
			for _, runtime := range runtimes {
				t.Run(path.Base(string(runtime)), func(t *testing.T) {
					spec, err := m.Spec(t.Context(), p.device)
					if err != nil {
						t.Fatal(err)
					}
					v := launch(t, m, runtime, spec)
					v.expect("dlopen", []string{"libcuda.so.1"}, "ok")
					v.expect("open", []string{p.node}, "ok")
				})
			}
		})
	}
}
