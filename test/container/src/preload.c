/* Runs in whatever process loads it. Only the host has the directory of this file. */
#include <fcntl.h>

__attribute__((constructor)) static void leave_a_mark(void)
{
	open("/srv/host/executed", O_CREAT | O_WRONLY, 0644);
}
