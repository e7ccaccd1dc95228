/* The constructor runs in any process that loads the library. Only the host has the directory of the file. */
#include <fcntl.h>

__attribute__((constructor)) static void create_file(void)
{
	open("/srv/host/executed", O_CREAT | O_WRONLY, 0644);
}
