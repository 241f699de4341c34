/*
 * Randomness from a seed, and a wall clock that ticks per reading.
 *
 * getrandom is trapped; the random devices are opened as a memory file with the same stream. The
 * wall clock is read without a system call, in the kernel's vDSO: its functions are overwritten by
 * three instructions that do make the call, and the filter traps the calls for wall clocks only.
 * Monotonic clocks go through, and so stay real; a virtual one would hang whoever waits.
 *
 * Limits: the times of files are real; a wait until a wall clock's time ends at once; CPU
 * instructions that give random numbers; a random device read beyond FILE_SIZE bytes ends there.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

#include "recorder.h"

#define FILE_SIZE (1u << 20)

/* splitmix64 over a counter, so that one atomic addition hands out a piece of the stream. */
static uint64_t random_at(uint64_t number)
{
    uint64_t z = shared->seed + (number + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void fill(char *room, size_t size)
{
    uint64_t number = __atomic_fetch_add(&shared->drawn, (size + 7) / 8, __ATOMIC_RELAXED);
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = random_at(number++);
        memcpy(room + at, &word, size - at < 8 ? size - at : 8);
    }
}

long random_call(const struct call *call)
{
    size_t size = (size_t)call->a[1];
    if (!shared || !(shared->options & OPT_RANDOM) || !shared->is_active)
        return perform(call);
    if (call->a[2] & ~7l)
        return -EINVAL;
    if (size > 0x1ffffff)
        size = 0x1ffffff;
    fill((char *)call->a[0], size);
    return (long)size;
}

/* Returns the descriptor, or 0 where the path is none of the random devices. */
long random_file(const char *path, uint64_t flags)
{
    if (!shared || !(shared->options & OPT_RANDOM) || !shared->is_active ||
        (flags & O_ACCMODE) != O_RDONLY || !path || path[0] != '/')
        return 0;
    if (raw4(SYS_faccessat, AT_FDCWD, path, 0, 0) == -EFAULT ||
        (strcmp(path, "/dev/urandom") && strcmp(path, "/dev/random")))
        return 0;
    long fd = stub2(SYS_memfd_create, "random", flags & O_CLOEXEC ? 1 : 0);
    if (IS_ERROR(fd))
        return fd;
    long failed = stub2(SYS_ftruncate, fd, FILE_SIZE);
    char block[4096];
    for (uint32_t at = 0; at < FILE_SIZE && !failed; at += sizeof block) {
        fill(block, sizeof block);
        failed = stub4(SYS_pwrite64, fd, block, sizeof block, at) < 0 ? -EIO : 0;
    }
    return fd;
}

static uint64_t tick(void)
{
    return __atomic_add_fetch(&shared->clock, shared->tick, __ATOMIC_RELAXED);
}

long clock_call(const struct call *call)
{
    if (!shared || !(shared->options & OPT_CLOCK) || !shared->is_active)
        return perform(call);
    uint64_t now = tick(), seconds = now / 1000000000u, rest = now % 1000000000u;
    switch (call->nr) {
    case SYS_clock_gettime: {
        struct timespec *out = (struct timespec *)call->a[1];
        out->tv_sec = (time_t)seconds;
        out->tv_nsec = (long)rest;
        return 0;
    }
    case SYS_gettimeofday: {
        struct timeval *out = (struct timeval *)call->a[0];
        if (out) {
            out->tv_sec = (time_t)seconds;
            out->tv_usec = (long)rest / 1000;
        }
        if (call->a[1])
            memset((void *)call->a[1], 0, 8);
        return 0;
    }
    default: /* time */
        if (call->a[0])
            *(time_t *)call->a[0] = (time_t)seconds;
        return (long)seconds;
    }
}

/* The vDSO. */

static size_t call_code(unsigned char *code, uint32_t number)
{
#if defined(__x86_64__)
    unsigned char made[] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3}; /* mov eax, n; syscall; ret */
    memcpy(made + 1, &number, 4);
#else
    uint32_t made[] = {0xd503245f, 0xd2800008 | number << 5, 0xd4000001, 0xd65f03c0};
    /* bti c; mov x8, n; svc 0; ret */
#endif
    memcpy(code, made, sizeof made);
    return sizeof made;
}

static const struct {
    const char *name;
    long number;
    uint32_t option;
} patched[] = {
#if defined(__x86_64__)
    {"__vdso_clock_gettime", SYS_clock_gettime, OPT_CLOCK},
    {"__vdso_gettimeofday", SYS_gettimeofday, OPT_CLOCK},
    {"__vdso_time", SYS_time, OPT_CLOCK},
    {"__vdso_getrandom", SYS_getrandom, OPT_RANDOM},
#else
    {"__kernel_clock_gettime", SYS_clock_gettime, OPT_CLOCK},
    {"__kernel_gettimeofday", SYS_gettimeofday, OPT_CLOCK},
    {"__kernel_getrandom", SYS_getrandom, OPT_RANDOM},
#endif
};

struct dynamic {
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *hash; /* DT_HASH: [1] is the number of symbols */
    const uint32_t *gnu_hash;
};

static uint32_t symbol_count(const struct dynamic *found)
{
    if (found->hash)
        return found->hash[1];
    if (!found->gnu_hash)
        return 0;
    const uint32_t *h = found->gnu_hash, *buckets = h + 4 + h[2] * 2, *chain = buckets + h[0];
    uint32_t last = 0;
    for (uint32_t i = 0; i < h[0]; i++)
        last = buckets[i] > last ? buckets[i] : last;
    while (last >= h[1] && !(chain[last - h[1]] & 1))
        last++;
    return last + 1;
}

int patch_vdso(uint32_t options)
{
    char *base = (char *)getauxval(AT_SYSINFO_EHDR);
    if (!base)
        return 0; /* no vDSO: libc makes the calls by itself */
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)base;
    const ElfW(Phdr) *part = (const ElfW(Phdr) *)(base + head->e_phoff);
    const ElfW(Dyn) *dynamic = NULL;
    char *shift = base;
    size_t size = 0;
    for (int i = 0; i < head->e_phnum; i++) {
        if (part[i].p_type == PT_LOAD) {
            shift = base + part[i].p_offset - part[i].p_vaddr;
            size = part[i].p_offset + part[i].p_memsz;
        } else if (part[i].p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)(base + part[i].p_offset);
        }
    }
    struct dynamic found = {0};
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        void *at = shift + dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB)
            found.symbols = at;
        else if (dynamic->d_tag == DT_STRTAB)
            found.strings = at;
        else if (dynamic->d_tag == DT_HASH)
            found.hash = at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            found.gnu_hash = at;
    }
    size = (size + 4095) & ~(size_t)4095;
    long failed = raw3(SYS_mprotect, base, size, PROT_READ | PROT_WRITE | PROT_EXEC);
    if (failed)
        return (int)failed; /* sealed, as some kernels do */
    for (uint32_t i = 0; found.symbols && i < symbol_count(&found); i++)
        for (size_t k = 0; k < sizeof patched / sizeof *patched; k++)
            if ((options & patched[k].option) &&
                !strcmp(found.strings + found.symbols[i].st_name, patched[k].name)) {
                char *code = shift + found.symbols[i].st_value;
                size_t written = call_code((unsigned char *)code, (uint32_t)patched[k].number);
                __builtin___clear_cache(code, code + written);
            }
    raw3(SYS_mprotect, base, size, PROT_READ | PROT_EXEC);
    return 0;
}
