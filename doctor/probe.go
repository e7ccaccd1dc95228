package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// cudaName is the SONAME of the CUDA driver library.
const cudaName = "libcuda.so.1"

// loaderTimeout bounds a run of the container's loader.
const loaderTimeout = 10 * time.Second

// contents is the part of the driver that a process in a container can use.
type contents struct {
	Nodes     map[string]syscall.Errno `json:"nodes"`     // result of opening each; 0: success
	Libraries map[string]string        `json:"libraries"` // error of loading each; empty: success
	GPUs      []gpu.GPU                `json:"gpus"`      // reported by NVML, if it is one of Libraries
	NVMLError string                   `json:"nvmlError,omitempty"`
}

// Probe inspects the container that it runs in, and writes its contents to out as JSON. Each name is the
// path of a device node or the SONAME of a library. worker is the driver worker in the container.
func Probe(ctx context.Context, worker string, names []string, out io.Writer) error {
	found := contents{Nodes: map[string]syscall.Errno{}, Libraries: map[string]string{}}
	for _, name := range names {
		if strings.HasPrefix(name, "/") {
			found.Nodes[name] = openNode(name)
			continue
		}
		found.Libraries[name] = ""
		path, err := findLibrary(ctx, worker, name)
		if err != nil {
			found.Libraries[name] = err.Error()
			continue
		}
		if name != host.NVMLName {
			continue
		}
		snapshot := driver.Read(ctx, driver.Config{Node: host.NewRoot("/"), Library: path, Worker: worker})
		if snapshot.Err != nil {
			found.NVMLError = snapshot.Err.Error()
			continue
		}
		found.GPUs = snapshot.Inventory.GPUs
	}
	return json.NewEncoder(out).Encode(found)
}

// openNode opens a device node as programs do. MIG capability nodes are read-only.
func openNode(node string) syscall.Errno {
	access := os.O_RDWR
	if strings.HasPrefix(node, "/dev/nvidia-caps/") {
		access = os.O_RDONLY
	}
	file, err := os.OpenFile(node, access, 0)
	if err == nil {
		_ = file.Close()
		return 0
	}
	errno := syscall.EIO
	_ = errors.As(err, &errno)
	return errno
}

// findLibrary returns the file that the container's loader loads for a SONAME. It runs program, which must be
// linked to glibc, with LD_PRELOAD and LD_TRACE_LOADED_OBJECTS: the loader then lists what it loaded instead
// of starting the program (ld.so(8)).
func findLibrary(ctx context.Context, program, soname string) (string, error) {
	loaded, printed, err := runLoader(ctx, program, "LD_PRELOAD="+soname, "LD_TRACE_LOADED_OBJECTS=1")
	if err != nil || printed != "" {
		return "", loaderError(soname, printed, err)
	}
	path := ""
	for line := range strings.Lines(loaded) {
		name, target, _ := strings.Cut(strings.TrimSpace(line), " => ")
		if strings.HasPrefix(target, "not found") {
			return "", fmt.Errorf("%s: %s: not found", soname, name)
		}
		if name == soname {
			path, _, _ = strings.Cut(target, " ")
		}
	}
	if path == "" {
		return "", fmt.Errorf("%s: not listed by the loader of this image", soname)
	}
	return path, nil
}

// runLoader runs program, and with it the loader of the image, and returns the beginnings of its standard output and
// standard error.
func runLoader(ctx context.Context, program string, environment ...string) (loaded, printed string, err error) {
	ctx, cancel := context.WithTimeout(ctx, loaderTimeout)
	defer cancel()
	var out, errs host.Output
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	host.KillWithChildren(cmd)
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// loaderError returns the error that the loader printed or, if there is none, the error of running it.
func loaderError(soname, printed string, err error) error {
	if _, reason, found := strings.Cut(printed, "cannot be preloaded ("); found {
		reason, _, _ = strings.Cut(reason, ")")
		return fmt.Errorf("%s: %s", soname, reason)
	}
	if printed = host.Printable(printed, textLimit); printed != "" {
		return fmt.Errorf("%s: %s", soname, printed)
	}
	return fmt.Errorf("%s: %w", soname, err)
}
