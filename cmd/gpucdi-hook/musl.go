package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// musl's loader has no cache. It searches the directories listed in muslList (a file in /etc), or muslDirs without that
// file (musl, ldso/dynlink.c). Driver libraries are not mounted in muslDirs.
var (
	muslArch   = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	muslLoader = "lib/ld-musl-" + muslArch + ".so.1"
	muslList   = "ld-musl-" + muslArch + ".path"
)

const muslDirs = "/lib:/usr/local/lib:/usr/lib"

// maxMuslList limits the size of muslList, in bytes.
const maxMuslList = 64 << 10

// addToMuslList appends the directories of libraries to the search path of musl, if the image has musl.
func addToMuslList(root, etc *os.File, libraries []string) error {
	loader, err := openBelow(root, muslLoader, 0)
	if err != nil {
		return nil // no musl
	}
	loader.Close()

	listed, err := readMuslList(etc)
	if err != nil {
		return err
	}
	all := slices.Clone(listed)
	for _, library := range libraries {
		if dir := path.Dir(library); !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	if len(all) == len(listed) {
		return nil
	}
	err = replace(etc, muslList, []byte(strings.Join(all, "\n")+"\n"))
	if errors.Is(err, unix.EROFS) { // read-only root, see addToCache; musl does not find the driver
		return nil
	}
	return err
}

func readMuslList(etc *os.File) ([]string, error) {
	data, err := readFile(etc, muslList, maxMuslList+1)
	if errors.Is(err, unix.ENOENT) {
		data, err = []byte(muslDirs), nil
	}
	if err != nil {
		return nil, err
	}
	if len(data) > maxMuslList {
		return nil, fmt.Errorf("file is larger than %d bytes", maxMuslList)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == ':' || r == '\n' }), nil
}
