# Functions for TestLookUps that look up the driver as programs do. Sourced by sh -e.

# triton_dirs prints -L options for the directories that Triton finds
# (third_party/nvidia/backend/driver.py): the directory in TRITON_LIBCUDA_PATH, unchecked; else the
# directories of libcuda in ld.so.cache; if there are none, the directories in LD_LIBRARY_PATH. One of them
# must contain libcuda.so.1 and, for old versions, libcuda.so.
triton_dirs() {
	if [ "$TRITON_LIBCUDA_PATH" ]; then
		echo "-L$TRITON_LIBCUDA_PATH"
		return
	fi
	dirs=$(/sbin/ldconfig -p | awk '/libcuda.so.1/ {print $NF}' | xargs --no-run-if-empty dirname)
	[ "$dirs" ] || dirs=$(echo "$LD_LIBRARY_PATH" | tr : '\n')
	for dir in $dirs; do
		if [ -e "$dir/libcuda.so.1" ] && [ -e "$dir/libcuda.so" ]; then
			printf -- '-L%s ' $dirs
			return
		fi
	done
	echo 'libcuda.so cannot be found' >&2
	return 1
}

source='int cuInit(unsigned); int call(void) { return cuInit(0); }'

# link links a library with the given options and loads it.
link() {
	echo "$source" | cc -shared -fPIC -o /tmp/linked.so -x c - -x none "$@"
	load_linked
}

# link_in_sysroot does the same with a linker that does not search the image's directories.
link_in_sysroot() {
	echo "$source" | cc -c -fPIC -o /tmp/linked.o -x c -
	mkdir -p /tmp/sysroot
	ld -shared --sysroot=/tmp/sysroot -o /tmp/linked.so /tmp/linked.o "$@"
	load_linked
}

# load_linked requires the SONAME of libcuda in NEEDED, so that the loader chooses the library.
load_linked() {
	readelf --dynamic /tmp/linked.so | grep --quiet 'NEEDED.*\[libcuda[.]so[.]1\]'
	probe cuda /tmp/linked.so
}

# tinygrad_file prints the first file that tinygrad finds (tinygrad/runtime/support/c.py).
tinygrad_file() {
	for dir in /usr/lib64 /usr/lib /usr/local/lib /lib /lib64 /lib/*-linux-gnu /usr/lib/wsl/lib; do
		for file in "$dir"/libcuda.so "$dir"/libcuda.so.[0-9]*; do
			if [ -f "$file" ]; then
				echo "$file"
				return
			fi
		done
	done
	return 1
}

# ollama_files prints all files that older versions of ollama find (discover/gpu_linux.go).
ollama_files() {
	ls -d /usr/local/cuda*/targets/*/lib/libcuda.so* /usr/lib/*-linux-gnu/nvidia/current/libcuda.so* \
		/usr/lib/*-linux-gnu/libcuda.so* /opt/cuda/lib*/libcuda.so* /usr/local/cuda/lib*/libcuda.so* \
		/usr/lib*/libcuda.so* /usr/local/lib*/libcuda.so* 2>/dev/null || true
}
