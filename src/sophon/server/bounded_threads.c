/* A `pthread_create` that fails beyond a bound, and its installation in the libraries that contain gRPC.

   Every library finds the functions of other libraries in a table of addresses that the dynamic linker fills. gRPC's entry
   for `pthread_create` is replaced here; Python and all other libraries have tables of their own and are not affected. */

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_int bound_most = INT32_MAX;
static atomic_int bound_running;
static atomic_long bound_refused;

typedef struct { void* (*run)(void*); void* argument; } bound_work;

static void* bound_run(void* given) {
    bound_work work = *(bound_work*) given;
    free(given);
    void* result = work.run(work.argument);
    atomic_fetch_sub(&bound_running, 1);
    return result;
}

static int bound_create(pthread_t* made, const pthread_attr_t* how, void* (*run)(void*), void* argument) {
    int detached = PTHREAD_CREATE_JOINABLE;
    /* gRPC's pool for events has detached threads, which must not fail. It joins the threads of calls. */
    if (how == NULL || pthread_attr_getdetachstate(how, &detached) || detached == PTHREAD_CREATE_DETACHED)
        return pthread_create(made, how, run, argument);
    bound_work* work = NULL;
    int error = EAGAIN;
    if (atomic_fetch_add(&bound_running, 1) < atomic_load(&bound_most))
        work = malloc(sizeof(bound_work));
    if (work != NULL) {
        *work = (bound_work) {run, argument};
        error = pthread_create(made, how, bound_run, work);
    }
    if (error) {
        free(work);
        atomic_fetch_sub(&bound_running, 1);
        atomic_fetch_add(&bound_refused, 1);
    }
    return error;
}

typedef struct { const char* libraries; int replaced; } bound_search;

static void bound_replace(const ElfW(Rela)* entries, size_t bytes, const ElfW(Sym)* symbols, const char* names,
                          ElfW(Addr) base, int* replaced) {
    size_t page = (size_t) sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < bytes / sizeof(ElfW(Rela)); at++) {
        size_t symbol = (size_t) (sizeof(void*) == 8 ? entries[at].r_info >> 32 : entries[at].r_info >> 8);
        if (symbol == 0 || strcmp(names + symbols[symbol].st_name, "pthread_create") != 0)
            continue;
        void** place = (void**) (base + entries[at].r_offset);
        void* start = (void*) ((uintptr_t) place & ~(uintptr_t) (page - 1));
        /* The linker may have made the table read-only. */
        if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
            continue;
        *place = (void*) bound_create;
        ++*replaced;
    }
}

static int bound_library(struct dl_phdr_info* library, size_t size, void* given) {
    (void) size;
    bound_search* search = given;
    const char* slash = strrchr(library->dlpi_name, '/');
    const char* name = slash ? slash + 1 : library->dlpi_name;
    const char* prefix = search->libraries;
    while (*prefix && strncmp(name, prefix, strlen(prefix)) != 0)
        prefix += strlen(prefix) + 1;
    if (!*prefix)
        return 0;
    const ElfW(Dyn)* entry = NULL;
    for (int at = 0; at < library->dlpi_phnum; at++)
        if (library->dlpi_phdr[at].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn)*) (library->dlpi_addr + library->dlpi_phdr[at].p_vaddr);
    const ElfW(Sym)* symbols = NULL;
    const char* names = NULL;
    const ElfW(Rela)* calls = NULL;
    const ElfW(Rela)* others = NULL;
    size_t calls_bytes = 0, others_bytes = 0;
    ElfW(Addr) base = library->dlpi_addr;
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        /* glibc has added the base already, other linkers have not. */
        ElfW(Addr) place = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
        switch (entry->d_tag) {
            case DT_SYMTAB: symbols = (const ElfW(Sym)*) place; break;
            case DT_STRTAB: names = (const char*) place; break;
            case DT_JMPREL: calls = (const ElfW(Rela)*) place; break;
            case DT_PLTRELSZ: calls_bytes = entry->d_un.d_val; break;
            case DT_RELA: others = (const ElfW(Rela)*) place; break;
            case DT_RELASZ: others_bytes = entry->d_un.d_val; break;
            case DT_PLTREL: if (entry->d_un.d_val != DT_RELA) return 0; break;
        }
    }
    if (symbols == NULL || names == NULL)
        return 0;
    if (calls != NULL)
        bound_replace(calls, calls_bytes, symbols, names, base, &search->replaced);
    if (others != NULL)
        bound_replace(others, others_bytes, symbols, names, base, &search->replaced);
    return 0;
}

/* Each name ends with a zero, and the list with an empty one. */
int bound_install(void) {
    bound_search search = {"libarrow_flight.\0libgrpc\0libgpr\0", 0};
    dl_iterate_phdr(bound_library, &search);
    return search.replaced;
}

void bound_set(int most) { atomic_store(&bound_most, most); }
int bound_count(void) { return atomic_load(&bound_running); }
long bound_refusals(void) { return atomic_load(&bound_refused); }
