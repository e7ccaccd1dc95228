/* The constructor runs in every process that loads the library, but only the host has the directory of the file. */
#include <fcntl.h>

__attribute__((constructor)) static void create_file(void)
{
	open("/srv/host/executed", O_CREAT | O_WRONLY, 0644);
}
