package cdi

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// maxSpec limits the specs that gpucdi writes, in bytes. A spec with 8 GPUs has about 60 KiB.
	maxSpec = 4 << 20
	// maxKeys limits the keys of a mapping in an untrusted spec. Specs consist mostly of lists.
	maxKeys = 256
)

// readSpec reads the spec at path, which may have been modified by other software.
func readSpec(path string) (*cdi.Spec, error) {
	data, err := host.ReadFile(path, maxSpec)
	if err != nil {
		return nil, err
	}
	return parseForeign(path, data)
}

// errTooManyKeys is returned for a spec that would take too long to parse.
var errTooManyKeys = errors.New("too many keys in a mapping")

// parseForeign is parseSpec for untrusted specs. YAML decoders compare each key of a mapping with all others, so
// parsing a megabyte of keys takes minutes. Decoding into a yaml.Node compares none. The error wraps errTooManyKeys if
// a mapping has more than maxKeys.
func parseForeign(name string, data []byte) (*cdi.Spec, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, err
	}
	if maxMappingKeys(&document) > maxKeys {
		return nil, fmt.Errorf("parsing %s: %w, more than %d", name, errTooManyKeys, maxKeys)
	}
	return parseSpec(name, data)
}

// maxMappingKeys returns the number of keys of the largest mapping at or below a YAML node.
func maxMappingKeys(node *yaml.Node) (keys int) {
	if node.Kind == yaml.MappingNode {
		keys = len(node.Content) / 2
	}
	for _, child := range node.Content {
		keys = max(keys, maxMappingKeys(child))
	}
	return keys
}

// parseSpec parses and validates a spec with the CDI library, as runtimes do. The library reads only files; data is
// passed in an in-memory file, so that it cannot be replaced between reads.
func parseSpec(name string, data []byte) (*cdi.Spec, error) {
	fd, err := unix.MemfdCreate("cdi-spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), path, name))
	}
	return spec, nil
}
