/* Makes a folder lie as a network file system does, as a library for LD_PRELOAD.
 *
 *     cc -shared -fPIC -O1 -o lying.so lying.c -ldl -pthread
 *
 * Only paths that contain the text LYING_FOLDER are concerned; without that variable every call passes through.
 * The names do not begin with KILN_, because kiln takes such variables out of its children's environment.
 *
 *   LYING_FOLDER      text that the absolute path of a call contains (names relative to a folder's descriptor count)
 *   LYING_REPLY       probability that a rename or mkdir that succeeded answers ENOENT or EEXIST (a lost reply)
 *   LYING_STALE       seconds: a folder that is listed again within them shows the names of the first listing, in
 *                     each process for itself, also if that process itself has changed the folder since
 *   LYING_FSYNC_MS    milliseconds by which fsync and fdatasync take longer
 *   LYING_FAULT       probability that read, open, opendir and rename answer EIO or ESTALE; every second such
 *                     rename was executed
 *   LYING_FULL_AFTER  seconds after the start of the process from which on write, mkdir, fallocate and the creation
 *                     of a file answer ENOSPC; LYING_FULL_UNTIL: seconds at which there is room again
 *   LYING_NO_LOCKS    flock answers ENOLCK, as on NFS without its lock service
 *   LYING_SEED        seed of the random numbers; the process id is added
 *   LYING_COUNTS      file of at least 8 * KINDS bytes that all processes map: lies of each kind (enum kind), int64
 *
 * Out of reach: calls that libc makes by itself (fopen, scandir, posix_spawn, exec) and direct system calls.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64) && sizeof(off_t) == 8, "a 64-bit libc is expected");

enum kind { RENAME_REPLY, MKDIR_REPLY, OLD_LISTING, SLOW_SYNC, READ_FAULT, OPEN_FAULT, RENAME_FAULT, FULL, KINDS };

static const char *lying_folder; /* NULL: every call passes through */
static double reply, stale_seconds, fault, full_after = -1, full_until = -1, began;
static long sync_milliseconds;
static uint64_t seed, draws;
static int64_t *counts;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double number(const char *name, double otherwise) {
  const char *text = getenv(name);
  return text && *text ? atof(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
  began = seconds();
  reply = number("LYING_REPLY", 0);
  stale_seconds = number("LYING_STALE", 0);
  fault = number("LYING_FAULT", 0);
  sync_milliseconds = (long)number("LYING_FSYNC_MS", 0);
  full_after = number("LYING_FULL_AFTER", -1);
  full_until = number("LYING_FULL_UNTIL", -1);
  const char *text = getenv("LYING_SEED");
  seed = text ? strtoull(text, NULL, 10) : 0;
  text = getenv("LYING_COUNTS");
  if (text) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, text, O_RDWR | O_CLOEXEC, 0);
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, KINDS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (map != MAP_FAILED) counts = map;
  }
  text = getenv("LYING_FOLDER");
  if (text && *text) lying_folder = strdup(text);
}

static void count(enum kind kind) {
  if (counts) __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
}

/* A random number from 0 to 1 (splitmix64 of a counter). After a fork the process id differs. */
static double draw(void) {
  uint64_t z = __atomic_add_fetch(&draws, 1, __ATOMIC_RELAXED) + ((seed + (uint64_t)getpid()) << 24);
  z *= 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int happens(double probability) { return probability > 0 && draw() < probability; }

static int fails(enum kind kind, int error) {
  count(kind);
  errno = error;
  return -1;
}

/* --- which paths are concerned */

static int is_in_link(int file, char *path) {
  char link[64];
  int kept = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = 0;
  errno = kept;
  return strstr(path, lying_folder) != NULL;
}

static int lies_in(int file) {
  char path[PATH_MAX];
  return lying_folder && is_in_link(file, path);
}

static int lies_at(int folder, const char *name) {
  char path[2 * PATH_MAX];
  if (!lying_folder || !name) return 0;
  if (name[0] == '/') return strstr(name, lying_folder) != NULL;
  if (folder != AT_FDCWD) {
    is_in_link(folder, path);
  } else if (!getcwd(path, PATH_MAX)) {
    return 0;
  }
  size_t length = strlen(path);
  snprintf(path + length, sizeof path - length, "/%s", name);
  return strstr(path, lying_folder) != NULL;
}

static int is_full(void) {
  if (full_after < 0) return 0;
  double now = seconds() - began;
  return now >= full_after && (full_until < 0 || now < full_until);
}

static int io_error(void) { return draw() < 0.5 ? EIO : ESTALE; }

/* --- rename and mkdir */

static int rename_file(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  int lies = lies_at(from_folder, from) || lies_at(to_folder, to);
  int has_fault = lies && happens(fault);
  if (has_fault && draw() < 0.5) return fails(RENAME_FAULT, io_error());
  int done = (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (has_fault) return fails(RENAME_FAULT, io_error());
  if (lies && done == 0 && happens(reply)) return fails(RENAME_REPLY, ENOENT);
  return done;
}

int rename(const char *from, const char *to) { return rename_file(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return rename_file(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  return rename_file(from_folder, from, to_folder, to, flags);
}

int mkdirat(int folder, const char *name, mode_t mode) {
  int lies = lies_at(folder, name);
  if (lies && is_full()) return fails(FULL, ENOSPC);
  int done = (int)syscall(SYS_mkdirat, folder, name, mode);
  if (lies && done == 0 && happens(reply)) return fails(MKDIR_REPLY, EEXIST);
  return done;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* --- open, read, write, sync */

static int open_file(int folder, const char *name, int flags, mode_t mode) {
  if (lies_at(folder, name)) {
    if (happens(fault)) return fails(OPEN_FAULT, io_error());
    if ((flags & O_CREAT) && is_full()) {
      struct stat found;
      if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return fails(FULL, ENOSPC);
    }
  }
  return (int)syscall(SYS_openat, folder, name, flags, mode);
}

#define MODE_OF(flags)                       \
  va_list more;                              \
  va_start(more, flags);                     \
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
  va_end(more)
#define OPENS(name)                          \
  int name(const char *path, int flags, ...) { \
    MODE_OF(flags);                          \
    return open_file(AT_FDCWD, path, flags, mode); \
  }
#define OPENS_AT(name)                       \
  int name(int folder, const char *path, int flags, ...) { \
    MODE_OF(flags);                          \
    return open_file(folder, path, flags, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
int __open_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return open_file(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return open_file(folder, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static int read_fails(int file) { return fault > 0 && lies_in(file) && happens(fault) ? fails(READ_FAULT, io_error()) : 0; }
static int write_fails(int file) { return is_full() && lies_in(file) ? fails(FULL, ENOSPC) : 0; }

ssize_t read(int file, void *data, size_t length) { return read_fails(file) ? -1 : syscall(SYS_read, file, data, length); }
ssize_t pread64(int file, void *data, size_t length, off64_t offset) {
  return read_fails(file) ? -1 : syscall(SYS_pread64, file, data, length, offset);
}
ssize_t pread(int file, void *data, size_t length, off_t offset) { return pread64(file, data, length, offset); }
ssize_t readv(int file, const struct iovec *parts, int number_of_parts) {
  return read_fails(file) ? -1 : syscall(SYS_readv, file, parts, number_of_parts);
}

ssize_t write(int file, const void *data, size_t length) {
  return write_fails(file) ? -1 : syscall(SYS_write, file, data, length);
}
ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset) {
  return write_fails(file) ? -1 : syscall(SYS_pwrite64, file, data, length, offset);
}
ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return pwrite64(file, data, length, offset); }
ssize_t writev(int file, const struct iovec *parts, int number_of_parts) {
  return write_fails(file) ? -1 : syscall(SYS_writev, file, parts, number_of_parts);
}

int fallocate64(int file, int mode, off64_t offset, off64_t length) {
  return write_fails(file) ? -1 : (int)syscall(SYS_fallocate, file, mode, offset, length);
}
int fallocate(int file, int mode, off_t offset, off_t length) { return fallocate64(file, mode, offset, length); }
int posix_fallocate64(int file, off64_t offset, off64_t length) { return fallocate64(file, 0, offset, length) ? errno : 0; }
int posix_fallocate(int file, off_t offset, off_t length) { return posix_fallocate64(file, offset, length); }

static int sync_file(int file, long call) {
  if (sync_milliseconds > 0 && lies_in(file)) {
    struct timespec left = {sync_milliseconds / 1000, sync_milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
    count(SLOW_SYNC);
  }
  return (int)syscall(call, file);
}

int flock(int file, int operation) {
  if (getenv("LYING_NO_LOCKS") && lies_in(file)) {
    errno = ENOLCK;
    return -1;
  }
  return (int)syscall(SYS_flock, file, operation);
}

int fsync(int file) { return sync_file(file, SYS_fsync); }
int fdatasync(int file) { return sync_file(file, SYS_fdatasync); }

/* --- listings: one snapshot per folder, and one cursor per open DIR */

struct snapshot {
  char *path;
  double taken;
  size_t length, users; /* the table below is one user */
  struct dirent64 *entries;
  struct snapshot *next;
};

struct cursor {
  DIR *dir;
  struct snapshot *snapshot;
  size_t position;
  struct cursor *next;
};

static struct snapshot *snapshots;
static struct cursor *cursors;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(type, name, ...)                                     \
  static type (*real_##name)(__VA_ARGS__);                        \
  if (!real_##name) real_##name = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static struct dirent64 *next_entry(DIR *dir) {
  REAL(struct dirent64 *, readdir64, DIR *);
  return real_readdir64(dir);
}

static void let_go(struct snapshot *snapshot) {
  if (--snapshot->users) return;
  free(snapshot->path);
  free(snapshot->entries);
  free(snapshot);
}

static struct snapshot *take_snapshot(DIR *dir, const char *path) {
  struct snapshot *new = calloc(1, sizeof *new);
  size_t room = 0;
  new->path = strdup(path);
  new->taken = seconds();
  new->users = 1;
  for (struct dirent64 *entry; (entry = next_entry(dir));) {
    if (new->length == room) {
      room = room ? 2 * room : 16;
      new->entries = realloc(new->entries, room * sizeof *entry);
    }
    /* The name alone ends where the entry ends: what lies behind it may not be read. */
    size_t bytes = offsetof(struct dirent64, d_name) + strlen(entry->d_name) + 1;
    memcpy(&new->entries[new->length++], entry, bytes);
  }
  return new;
}

/* The snapshot of a folder, if it is young enough; else a new one in its place. */
static struct snapshot *snapshot_of(DIR *dir, const char *path) {
  struct snapshot **place = &snapshots;
  while (*place && strcmp((*place)->path, path) != 0) place = &(*place)->next;
  struct snapshot *old = *place;
  if (old && seconds() - old->taken < stale_seconds) {
    count(OLD_LISTING);
    return old;
  }
  struct snapshot *new = take_snapshot(dir, path);
  new->next = old ? old->next : NULL;
  *place = new;
  if (old) let_go(old);
  return new;
}

static DIR *with_snapshot(DIR *dir) {
  char path[PATH_MAX];
  if (!dir || stale_seconds <= 0 || !lying_folder || !is_in_link(dirfd(dir), path)) return dir;
  int kept = errno;
  struct cursor *cursor = calloc(1, sizeof *cursor);
  pthread_mutex_lock(&lock);
  cursor->dir = dir;
  cursor->snapshot = snapshot_of(dir, path);
  cursor->snapshot->users++;
  cursor->next = cursors;
  cursors = cursor;
  pthread_mutex_unlock(&lock);
  errno = kept;
  return dir;
}

DIR *opendir(const char *name) {
  REAL(DIR *, opendir, const char *);
  if (lies_at(AT_FDCWD, name) && happens(fault)) {
    fails(OPEN_FAULT, io_error());
    return NULL;
  }
  return with_snapshot(real_opendir(name));
}

DIR *fdopendir(int file) {
  REAL(DIR *, fdopendir, int);
  return with_snapshot(real_fdopendir(file));
}

/* The cursor of a DIR, with the lock held; NULL if it is not concerned. */
static struct cursor **cursor_of(DIR *dir) {
  struct cursor **place = &cursors;
  while (*place && (*place)->dir != dir) place = &(*place)->next;
  return place;
}

struct dirent64 *readdir64(DIR *dir) {
  pthread_mutex_lock(&lock);
  struct cursor *cursor = *cursor_of(dir);
  struct dirent64 *entry = NULL;
  if (cursor && cursor->position < cursor->snapshot->length) entry = &cursor->snapshot->entries[cursor->position++];
  pthread_mutex_unlock(&lock);
  return cursor ? entry : next_entry(dir);
}

struct dirent *readdir(DIR *dir) { return (struct dirent *)readdir64(dir); }

void rewinddir(DIR *dir) {
  REAL(void, rewinddir, DIR *);
  pthread_mutex_lock(&lock);
  struct cursor *cursor = *cursor_of(dir);
  if (cursor) cursor->position = 0;
  pthread_mutex_unlock(&lock);
  real_rewinddir(dir);
}

long telldir(DIR *dir) {
  REAL(long, telldir, DIR *);
  pthread_mutex_lock(&lock);
  struct cursor *cursor = *cursor_of(dir);
  long position = cursor ? (long)cursor->position : 0;
  pthread_mutex_unlock(&lock);
  return cursor ? position : real_telldir(dir);
}

void seekdir(DIR *dir, long position) {
  REAL(void, seekdir, DIR *, long);
  pthread_mutex_lock(&lock);
  struct cursor *cursor = *cursor_of(dir);
  if (cursor) cursor->position = (size_t)position;
  pthread_mutex_unlock(&lock);
  if (!cursor) real_seekdir(dir, position);
}

int closedir(DIR *dir) {
  REAL(int, closedir, DIR *);
  pthread_mutex_lock(&lock);
  struct cursor **place = cursor_of(dir), *cursor = *place;
  if (cursor) {
    *place = cursor->next;
    let_go(cursor->snapshot);
    free(cursor);
  }
  pthread_mutex_unlock(&lock);
  return real_closedir(dir);
}
