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
	// maxSpec bounds our own specs, in bytes. That of 8 GPUs has some 60 KiB.
	maxSpec = 4 << 20
	// maxKeys bounds the keys of a mapping in a spec of others. Specs have few: most are lists.
	maxKeys = 256
)

// readSpec reads the spec at path, which anybody may have put there.
func readSpec(path string) (*cdi.Spec, error) {
	data, err := host.ReadFile(path, maxSpec)
	if err != nil {
		return nil, err
	}
	return parseForeign(path, data)
}

// errTooManyKeys is returned for a spec that takes too long to parse.
var errTooManyKeys = errors.New("a mapping has too many keys")

// parseForeign is as parseSpec, for the spec of somebody else. YAML decoders compare each key of
// a mapping with all others: a megabyte of keys takes minutes.
func parseForeign(name string, data []byte) (*cdi.Spec, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, err
	}
	if keysOf(&document) > maxKeys {
		return nil, fmt.Errorf("reading %s: %w, more than %d", name, errTooManyKeys, maxKeys)
	}
	return parseSpec(name, data)
}

// keysOf returns the number of keys of the largest mapping in a node.
func keysOf(node *yaml.Node) (keys int) {
	if node.Kind == yaml.MappingNode {
		keys = len(node.Content) / 2
	}
	for _, child := range node.Content {
		keys = max(keys, keysOf(child))
	}
	return keys
}

// parseSpec parses and validates a spec as runtimes do. The CDI library reads specs from files
// only: this one is in memory, so that it cannot be replaced meanwhile.
func parseSpec(name string, data []byte) (*cdi.Spec, error) {
	fd, err := unix.MemfdCreate("cdi-spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
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
