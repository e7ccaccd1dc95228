// The part of WSL2's libdxcore.so that nvcdi uses (Windows' d3dkmthk.h): one GPU whose driver is in the directory
// STORE, which a compiler flag defines.
#include <string.h>
#include <wchar.h>

struct adapter {
	unsigned handle, luid[2], sources, flags;
};

struct adapters {
	unsigned count;
	struct adapter *list; // null: only count
};

struct registry {
	int query;
	unsigned flags;
	wchar_t name[260];
	unsigned type, index, size; // size: of text, in bytes
	int status;
	_Alignas(8) wchar_t text[]; // if the buffer is large enough
};

struct query {
	unsigned handle;
	enum { DRIVER_VERSION = 13, REGISTRY = 48 } type;
	void *data;
	unsigned size;
};

int D3DKMTEnumAdapters2(struct adapters *all) {
	all->count = 1;
	if (all->list)
		all->list[0] = (struct adapter){.handle = 1};
	return 0;
}

int D3DKMTQueryAdapterInfo(struct query *q) {
	struct registry *answer = q->data;
	switch (q->type) {
	case DRIVER_VERSION:
		*(unsigned *)q->data = 3000; // WDDM 3.0
		return 0;
	case REGISTRY:
		answer->size = sizeof(STORE) - sizeof(wchar_t);
		if (q->size >= sizeof(*answer) + sizeof(STORE))
			memcpy(answer->text, STORE, answer->size);
		return 0;
	}
	return -1;
}
