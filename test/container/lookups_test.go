package container_test

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

// Remedies that a look-up needs to find the driver in an image.
const (
	noRemedy       = "works"
	ldconfigOrHook = "`ldconfig` or hook"
	hookOnly       = "hook"
	notApplicable  = "–" // the programs require a C compiler
)

// A remedy is applied to a container before the look-up.
type remedy string

const (
	none     remedy = "none"
	ldconfig remedy = "ldconfig"
	theHook  remedy = "hook"
)

// suffices reports whether the remedy is enough for a look-up that needs noRemedy, ldconfigOrHook or hookOnly.
func (r remedy) suffices(need string) bool {
	switch need {
	case noRemedy:
		return true
	case ldconfigOrHook:
		return r != none
	default:
		return r == theHook
	}
}

// lookUpImages are the columns of the table of look-ups in docs/images.md.
var lookUpImages = []image{
	{name: "C compiler", root: images.Compiler},
	{name: "no C compiler", root: images.Compiler,
		alter: shell("rm usr/bin/cc usr/bin/gcc usr/bin/*-gcc usr/bin/ld usr/bin/*-ld usr/bin/objdump")},
	{name: "deleted libcuda in cache", root: images.Compiler, alter: deletedCUDA},
	{name: "own libcuda in cache", root: images.Compiler, alter: staleCUDA},
}

// A lookUp is a way of finding the driver: one row of the table.
type lookUp struct {
	name, programs string
	needs          [4]string // for each of lookUpImages

	// run is a shell script that can call the functions in src/lookups.sh. Each line of its output
	// ends in the probe's result for a library: "2" for two GPUs, "ok", or an error.
	run string
}

var (
	triton = lookUp{
		name:     "Triton 2.2 and newer",
		programs: "torch.compile, vLLM, SGLang, Mamba, lmdeploy",
		needs:    [4]string{noRemedy, notApplicable, noRemedy, hookOnly},
		run:      `dirs=$(triton_dirs); for library in -l:libcuda.so.1 -lcuda; do link $dirs $library; done`,
	}
	tritonInSysroot = lookUp{
		name:     "Triton 2.2 and newer, with a C compiler that has its own sysroot",
		programs: "the same, with conda's compilers",
		needs:    [4]string{noRemedy, notApplicable, noRemedy, hookOnly},
		run:      `dirs=$(triton_dirs); for library in -l:libcuda.so.1 -lcuda; do link_in_sysroot $dirs $library; done`,
	}
)

var lookUps = []lookUp{
	{
		name:     "`dlopen` of `libcuda.so.1`, or linked against it",
		programs: "PyTorch, TensorFlow, JAX, CuPy, cuda-python, TensorRT-LLM, ONNX Runtime, llama.cpp, ollama, CUDA.jl, NVSHMEM, UCX, FFmpeg",
		needs:    [4]string{noRemedy, noRemedy, noRemedy, hookOnly},
		run:      `probe cuda libcuda.so.1`,
	},
	{
		name:     "`dlopen` of `libcuda.so`",
		programs: "Numba, NVIDIA Warp, PhysX, cudarc, older bitsandbytes",
		needs:    [4]string{noRemedy, noRemedy, noRemedy, noRemedy},
		run:      `probe cuda libcuda.so`,
	},
	{
		name:     "`dlopen` of both names in one process, which must return the same library",
		programs: "any of the above in one process",
		needs:    [4]string{noRemedy, noRemedy, noRemedy, hookOnly},
		run:      `probe same libcuda.so.1 libcuda.so libcuda.so.1; probe same libcuda.so libcuda.so.1`,
	},
	{
		name:     "`dlopen` of `libnvidia-ml.so.1` or `libnvidia-ml.so`",
		programs: "PyTorch, NCCL, Ray, pynvml, go-nvml, nvtop",
		needs:    [4]string{noRemedy, noRemedy, noRemedy, noRemedy},
		run:      `probe nvml libnvidia-ml.so.1 libnvidia-ml.so; probe same libnvidia-ml.so.1 libnvidia-ml.so`,
	},
	triton,
	tritonInSysroot,
	{
		name:     "`ldconfig -p`",
		programs: "Triton 2.1, Apptainer in a container",
		needs:    [4]string{ldconfigOrHook, ldconfigOrHook, ldconfigOrHook, hookOnly},
		run:      `dirs=$(TRITON_LIBCUDA_PATH= triton_dirs); for dir in $dirs; do probe cuda "${dir#-L}/libcuda.so"; done`,
	},
	{
		name:     "`cc -lcuda`",
		programs: "C++ wrapper of Inductor, AOTInductor, FlashInfer, DeepSpeed, PyCUDA, CUDA extensions of PyTorch",
		needs:    [4]string{noRemedy, notApplicable, noRemedy, hookOnly},
		run:      `link -lcuda`,
	},
	{
		name:     "`ctypes.util.find_library(\"cuda\")` in Python",
		programs: "older tinygrad",
		needs:    [4]string{noRemedy, ldconfigOrHook, noRemedy, hookOnly},
		run:      `probe cuda "$(python3 -c 'import ctypes.util; print(ctypes.util.find_library("cuda"))')"`,
	},
	{
		name:     "files in well-known directories",
		programs: "tinygrad, older ollama",
		needs:    [4]string{noRemedy, noRemedy, noRemedy, noRemedy},
		run:      `first=$(tinygrad_file); all=$(ollama_files); [ "$all" ]; probe cuda $first $all`,
	},
}

// nvidiaPath is LD_LIBRARY_PATH in NVIDIA's CUDA images up to 12.8.0. The CDI spec mounts nothing in its directories.
const nvidiaPath = "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"

func TestLookUps(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{Images: []images.Root{images.Compiler}})
	functions, err := os.ReadFile("src/lookups.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.Path(path.Join(container.ImageDir(images.Compiler), "lookups.sh")), functions, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, remedy := range []remedy{none, theHook} {
		if remedy == theHook {
			generateWithHook(t, m)
		} else {
			generate(t, m)
		}
		for column, image := range lookUpImages {
			for _, env := range []string{"", nvidiaPath} {
				t.Run(fmt.Sprintf("remedy %s/%s/%s", remedy, image.name, cmp.Or(env, "plain")), func(t *testing.T) {
					image.spec = func(s *specs.Spec) {
						if env != "" {
							s.Process.Env = append(s.Process.Env, env)
						}
					}
					image.runLookUps(t, m, container.Runc, column, remedy)
				})
			}
		}
		// Only the mounts and TRITON_LIBCUDA_PATH depend on the runtime, so one image suffices for crun.
		t.Run(fmt.Sprintf("remedy %s/%s", remedy, path.Base(string(container.Crun))), func(t *testing.T) {
			lookUpImages[0].runLookUps(t, m, container.Crun, 0, remedy)
		})
	}
	// With CRI-O 1.34.0, variables of image and pod override variables of the CDI spec.
	t.Run("another TRITON_LIBCUDA_PATH", func(t *testing.T) {
		generate(t, m)
		image := lookUpImages[0]
		image.spec = func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "TRITON_LIBCUDA_PATH=/other") }
		v, err := image.run(t, m, container.Runc, 2, 5)
		if err != nil {
			t.Fatal(err)
		}
		results := v.lookUp(triton, tritonInSysroot)
		results[0].require(t, t.Name(), true)
		results[1].require(t, t.Name(), false)
	})
	var table strings.Builder
	for _, l := range lookUps {
		fmt.Fprintf(&table, "| %s | %s | %s |\n", l.name, l.programs, strings.Join(l.needs[:], " | "))
	}
	if err := docs.CheckTable(t.Context(), "docs/images.md", table.String()); err != nil {
		t.Error(err)
	}
}

// runLookUps runs all look-ups in a container of the image, which is a column of the table. With the remedy none, it
// then runs them with the remedy ldconfig in the same container.
func (i image) runLookUps(t *testing.T, m *container.Machine, runtime container.Runtime, column int, remedy remedy) {
	v, err := i.run(t, m, runtime, 2, 5)
	if err != nil {
		t.Fatal(err)
	}
	v.checkLookUps(column, remedy)
	if remedy == none {
		v.exec("ldconfig")
		v.checkLookUps(column, ldconfig)
	}
}

// checkLookUps requires each applicable look-up to succeed exactly if the remedy suffices.
func (v *view) checkLookUps(column int, remedy remedy) {
	v.t.Helper()
	var applicable []lookUp
	for _, l := range lookUps {
		if l.needs[column] != notApplicable {
			applicable = append(applicable, l)
		}
	}
	for i, result := range v.lookUp(applicable...) {
		result.require(v.t, "remedy "+string(remedy), remedy.suffices(applicable[i].needs[column]))
	}
}

// A result is what a look-up printed.
type result struct {
	lookUp
	output string
	found  bool // the driver
}

// lookUp runs look-ups one after the other.
func (v *view) lookUp(lookUps ...lookUp) (results []result) {
	v.t.Helper()
	const begin, succeeded = "begin look-up\n", "look-up succeeded\n"
	var script strings.Builder
	for _, l := range lookUps {
		fmt.Fprintf(&script, "printf %q; sh -ec %s 2>&1 && printf %q\n", begin, quote(". /lookups.sh\n"+l.run), succeeded)
	}
	outputs := strings.Split(strings.Join(v.exec("sh", "-c", script.String()+"true"), "\n")+"\n", begin)[1:]
	if len(outputs) != len(lookUps) {
		v.t.Fatalf("%d outputs of %d look-ups: %q", len(outputs), len(lookUps), outputs)
	}
	for i, output := range outputs {
		output, found := strings.CutSuffix(output, succeeded)
		found = found && output != ""
		for line := range strings.Lines(output) {
			line = strings.TrimSpace(line)
			found = found && (strings.HasSuffix(line, " 2") || strings.HasSuffix(line, " ok"))
		}
		results = append(results, result{lookUps[i], output, found})
	}
	return results
}

// require requires the look-up to have found the driver, or not to have found it. condition describes the container.
func (r result) require(t *testing.T, condition string, want bool) {
	t.Helper()
	if r.found != want {
		t.Errorf("%s: look-up %q finds the driver: %t, want %t\n%s", condition, r.name, r.found, want, r.output)
	}
}

// quote quotes a shell script as an argument.
func quote(script string) string { return "'" + strings.ReplaceAll(script, "'", `'\''`) + "'" }

// deletedCUDA adds a libcuda to the image's ld.so.cache whose file does not exist.
func deletedCUDA(t *testing.T, m *container.Machine, b *container.Bundle) {
	staleCUDA(t, m, b)
	if err := os.Remove(b.Path("/opt/cuda/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
}
