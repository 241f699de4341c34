/*
 * From a path to a name: the folder object and the entry.
 *
 * The kernel resolves the path of the folder, links and all; only the last component is cut off
 * here. Nothing is remembered, so that no rename can make it stale.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "recorder.h"

#define PATH_SIZE 4096

/* Returns whether the folder is under the root; where it is, *place is filled. */
int place_find(int directory, const char *path, struct place *place)
{
    struct stat st;
    place->folder.birth = 0;
    if (!path || stat_at(directory, path, &st, AT_SYMLINK_NOFOLLOW) == -EFAULT)
        return 0;
    size_t size = strnlen(path, PATH_SIZE);
    while (size > 1 && path[size - 1] == '/')
        size--;
    size_t start = size;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (size == 0 || size >= PATH_SIZE || size - start > 255)
        return 0;
    place->name = path + start;
    place->size = (uint16_t)(size - start);
    if (place->size == 0 || (place->size == 1 && place->name[0] == '.') ||
        (place->size == 2 && place->name[0] == '.' && place->name[1] == '.'))
        return 0;
    char folder[PATH_SIZE];
    memcpy(folder, path, start);
    memcpy(folder + start, ".", 2);
    if (stat_at(directory, folder, &st, 0) != 0)
        return 0;
    place->folder = object_id(object_of(&st));
    return place->folder.birth != 0;
}

int number_path(char *text, const char *before, int number)
{
    size_t at = strlen(before);
    memcpy(text, before, at);
    char digits[12];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        text[at++] = digits[--count];
    text[at] = 0;
    return (int)at;
}

/* The same for a file that was opened a moment ago: by where the kernel says that it is. */
int place_of_descriptor(int fd, char *buffer, size_t size, struct place *place)
{
    char link[32];
    number_path(link, "/proc/self/fd/", fd);
    long got = raw4(SYS_readlinkat, AT_FDCWD, link, buffer, size - 1);
    place->folder.birth = 0;
    if (IS_ERROR(got) || (size_t)got >= size - 1)
        return -1; /* no /proc, or a path beyond all bounds */
    buffer[got] = 0;
    char *slash = strrchr(buffer, '/');
    if (!slash || slash[1] == 0)
        return 0;
    struct stat st;
    *slash = 0;
    long failed = stat_at(AT_FDCWD, slash == buffer ? "/" : buffer, &st, 0);
    *slash = '/';
    if (failed)
        return 0;
    place->folder = object_id(object_of(&st));
    place->name = slash + 1;
    place->size = (uint16_t)strlen(slash + 1);
    return place->folder.birth != 0;
}
