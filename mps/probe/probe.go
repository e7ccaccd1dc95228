// Package probe calls CUDA as a client of an MPS server. Only the driver worker contains it, since a server that hangs
// also hangs its clients.
package probe

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

typedef int (*init_t)(unsigned);
typedef int (*get_t)(int *, int);
typedef int (*create_t)(void **, unsigned, int);

// probe creates a context on the first device. The context ends with the process. The result is a CUresult, or a
// negative number if the library cannot be used.
static int probe(const char *library, const char **problem)
{
	void *cuda = dlopen(library, RTLD_NOW | RTLD_LOCAL), *context = NULL;
	if (!cuda) {
		*problem = dlerror();
		return -1;
	}
	init_t init;
	get_t get;
	create_t create;
	if (!(init = (init_t)dlsym(cuda, "cuInit")) || !(get = (get_t)dlsym(cuda, "cuDeviceGet")) ||
	    !(create = (create_t)dlsym(cuda, "cuCtxCreate_v2"))) {
		*problem = dlerror();
		return -1;
	}
	int device, ret = init(0);
	if (!ret)
		ret = get(&device, 0);
	if (!ret)
		ret = create(&context, 0, device);
	return ret;
}
*/
import "C"

import "fmt"

// Run creates a CUDA context with the library at path libcuda. The context ends with the process. With
// CUDA_MPS_PIPE_DIRECTORY in the environment, the process is a client of the MPS server there. Run does not return if
// that server hangs.
func Run(libcuda string) error {
	var problem *C.char
	switch result := C.probe(C.CString(libcuda), &problem); {
	case result < 0:
		return fmt.Errorf("loading %s: %s", libcuda, C.GoString(problem))
	case result > 0:
		return fmt.Errorf("creating a CUDA context: CUDA error %d", result)
	}
	return nil
}
