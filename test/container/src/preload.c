/*
 * The constructor runs in every process that loads the library. It creates a file in the host directory that the tests
 * compare; in a container, the call fails unless the image has that directory.
 */
#include <fcntl.h>

__attribute__((constructor)) static void create_file(void)
{
	open("/srv/host/executed", O_CREAT | O_WRONLY, 0644);
}
