/* Counts, records and disturbs the calls by which a process changes files, as a library for LD_PRELOAD.
 *
 * Only calls on paths below $FAULT_BELOW count. The names do not begin with KILN_, because kiln
 * takes such variables out of its children's environment.
 *
 *   FAULT_BELOW    folder, canonical
 *   FAULT_SHARED   file of one page that all processes map: counters and the hit
 *   FAULT_ROLE     parent (the program `kiln`) or child (everything else): whose calls are disturbed
 *   FAULT_AT       number of the disturbed call, from 1; FAULT_LASTING=1: also all calls after it
 *   FAULT_DO       error NUMBER | tear | delay MILLISECONDS | kill self | kill parent | kill group
 *   FAULT_LOG      file to which every call is appended with its data (struct record)
 *   FAULT_CLOCK    seconds that are added to the clock of day
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
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

enum kind { WRITE = 1, SYNC, RENAME, OPEN, MKDIR, UNLINK, RMDIR, TRUNCATE, SYMLINK, LINK, SAY, CALL };

struct record {
  uint32_t kind, role, pid, path_bytes, other_bytes, data_bytes;
  uint64_t inode, offset, flags; /* OPEN: 1 created, 2 truncated; CALL: kind, number, 0 */
};

struct shared {
  int64_t counts[2];
  int64_t lock;
  int64_t hit_kind;
  char hit_path[1024];
};

static struct shared *shared;
static char below[PATH_MAX];
static size_t below_length;
static int role, wanted = -1, lasting, log_file = -1, action, argument, torn_file = -1;
static int64_t at, clock_seconds;
enum { NOTHING, ERROR, TEAR, DELAY, KILL_SELF, KILL_PARENT, KILL_GROUP };

static int real_open(const char *path, int flags, mode_t mode) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); }

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("FAULT_CLOCK");
  if (text) clock_seconds = atoll(text);
  const char *folder = getenv("FAULT_BELOW"), *page = getenv("FAULT_SHARED");
  if (!folder || !page) return;
  int file = real_open(page, O_RDWR | O_CLOEXEC, 0);
  if (file < 0) return;
  void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (map == MAP_FAILED) return;
  snprintf(below, sizeof below, "%s", folder);
  below_length = strlen(below);
  char program[PATH_MAX] = "";
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return;
  const char *name = strrchr(program, '/');
  role = !(name && strcmp(name, "/kiln") == 0);
  text = getenv("FAULT_ROLE");
  if (text) wanted = strcmp(text, "parent") != 0;
  text = getenv("FAULT_AT");
  if (text) at = atoll(text);
  lasting = getenv("FAULT_LASTING") != NULL;
  text = getenv("FAULT_DO");
  if (text) {
    if (sscanf(text, "error %d", &argument) == 1) action = ERROR;
    else if (sscanf(text, "delay %d", &argument) == 1) action = DELAY;
    else if (strcmp(text, "tear") == 0) action = TEAR;
    else if (strcmp(text, "kill self") == 0) action = KILL_SELF;
    else if (strcmp(text, "kill parent") == 0) action = KILL_PARENT;
    else if (strcmp(text, "kill group") == 0) action = KILL_GROUP;
  }
  text = getenv("FAULT_LOG");
  if (text) log_file = real_open(text, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
  shared = map;
}

static int is_below(const char *path) {
  return path[0] && strncmp(path, below, below_length) == 0 && (path[below_length] == '/' || path[below_length] == 0);
}

/* The absolute path of a name, without resolving links; empty if it is not below the folder. */
static const char *path_of(int folder, const char *name, char *path) {
  path[0] = 0;
  if (!shared || !name) return path;
  if (name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
  } else {
    char base[PATH_MAX / 2] = "", link[64];
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return path;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      if (readlink(link, base, sizeof base - 1) < 0) return path;
    }
    snprintf(path, PATH_MAX, "%s/%s", base, name);
  }
  if (!is_below(path)) path[0] = 0;
  return path;
}

static const char *path_of_file(int file, char *path) {
  path[0] = 0;
  if (!shared) return path;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = 0;
  if (!is_below(path)) path[0] = 0;
  return path;
}

/* Calls and their records must have the same order. A process that was killed with the lock is not waited for. */
static void lock(void) {
  if (log_file < 0) return;
  for (int turn = 0; turn < 20000 && __atomic_exchange_n(&shared->lock, 1, __ATOMIC_ACQUIRE); turn++) usleep(50);
}

static void unlock(void) {
  if (log_file >= 0) __atomic_store_n(&shared->lock, 0, __ATOMIC_RELEASE);
}

static void note(enum kind kind, const char *path, const char *other, const void *data, size_t data_bytes, uint64_t inode, uint64_t offset,
                 uint64_t flags) {
  if (log_file < 0) return;
  int kept = errno;
  struct record record = {kind, (uint32_t)role, (uint32_t)getpid(), (uint32_t)strlen(path), (uint32_t)strlen(other), (uint32_t)data_bytes,
                          inode, offset, flags};
  struct iovec parts[] = {{&record, sizeof record}, {(void *)path, record.path_bytes}, {(void *)other, record.other_bytes},
                          {(void *)data, data_bytes}};
  syscall(SYS_writev, log_file, parts, 4);
  errno = kept;
}

/* Counts one call and disturbs it. Returns 0 if the call is to be made, -1 (with errno) if it has failed, and 1 if a
 * write is to be torn. */
static int disturb(enum kind kind, const char *path) {
  if (!shared || !path[0]) return 0;
  int64_t number = __atomic_add_fetch(&shared->counts[role], 1, __ATOMIC_SEQ_CST);
  note(CALL, path, "", NULL, 0, kind, (uint64_t)number, 0);
  if (role != wanted || !action || !(number == at || (lasting && number > at))) return 0;
  if (number == at) {
    shared->hit_kind = kind;
    snprintf(shared->hit_path, sizeof shared->hit_path, "%s", path);
  }
  switch (action) {
    case ERROR: errno = argument; return -1;
    case TEAR:
      if (kind == WRITE) return 1;
      errno = EIO;
      return -1;
    case DELAY: usleep((useconds_t)argument * 1000); return 0;
    case KILL_SELF: kill(getpid(), SIGKILL); break;
    case KILL_PARENT: kill(getppid(), SIGKILL); break;
    case KILL_GROUP:
      if (role) kill(getppid(), SIGKILL);
      kill(0, SIGKILL);
      break;
  }
  return 0;
}

static uint64_t inode_of(const char *path) {
  struct stat found;
  return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static uint64_t inode_of_file(int file) {
  struct stat found;
  return fstat(file, &found) == 0 ? found.st_ino : 0;
}

/* Where the next write of a file goes. */
static uint64_t place_of(int file) {
  struct stat found;
  int flags = fcntl(file, F_GETFL);
  if (flags >= 0 && (flags & O_APPEND) && fstat(file, &found) == 0) return (uint64_t)found.st_size;
  off_t offset = lseek(file, 0, SEEK_CUR);
  return offset < 0 ? 0 : (uint64_t)offset;
}

static ssize_t put(int file, const void *data, size_t length, int64_t offset) {
  char path[PATH_MAX];
  if (!shared) {
    return offset < 0 ? syscall(SYS_write, file, data, length) : syscall(SYS_pwrite64, file, data, length, offset);
  }
  if (log_file >= 0 && file == 1 && role == 0) {
    lock();
    note(SAY, "", "", data, length, 0, 0, 0);
    unlock();
  }
  path_of_file(file, path);
  if (path[0] && torn_file == file) {
    torn_file = -1;
    errno = ENOSPC;
    return -1;
  }
  int done = disturb(WRITE, path);
  if (done < 0) return -1;
  if (done == 1 && length > 1) {
    length /= 2;
    torn_file = file;
  }
  if (path[0]) lock();
  uint64_t place = offset < 0 ? (path[0] ? place_of(file) : 0) : (uint64_t)offset;
  ssize_t written = offset < 0 ? syscall(SYS_write, file, data, length) : syscall(SYS_pwrite64, file, data, length, offset);
  if (path[0]) {
    if (written > 0) note(WRITE, path, "", data, (size_t)written, inode_of_file(file), place, 0);
    unlock();
  }
  return written;
}

ssize_t write(int file, const void *data, size_t length) { return put(file, data, length, -1); }
ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return put(file, data, length, offset); }
ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset) { return put(file, data, length, offset); }

ssize_t writev(int file, const struct iovec *parts, int count) {
  char path[PATH_MAX];
  if (!shared || !path_of_file(file, path)[0]) return syscall(SYS_writev, file, parts, count);
  /* A short write is allowed, so the first part that is not empty is enough. */
  for (int part = 0; part < count; part++)
    if (parts[part].iov_len) return put(file, parts[part].iov_base, parts[part].iov_len, -1);
  return 0;
}

static int sync_file(int file, long number) {
  char path[PATH_MAX];
  if (disturb(SYNC, path_of_file(file, path)) < 0) return -1;
  if (path[0]) lock();
  int done = (int)syscall(number, file);
  if (path[0]) {
    if (done == 0) note(SYNC, path, "", NULL, 0, inode_of_file(file), 0, 0);
    unlock();
  }
  return done;
}

int fsync(int file) { return sync_file(file, SYS_fsync); }
int fdatasync(int file) { return sync_file(file, SYS_fdatasync); }

static int truncate_file(int file, off64_t length) {
  char path[PATH_MAX];
  if (disturb(TRUNCATE, path_of_file(file, path)) < 0) return -1;
  if (path[0]) lock();
  int done = (int)syscall(SYS_ftruncate, file, length);
  if (path[0]) {
    if (done == 0) note(TRUNCATE, path, "", NULL, 0, inode_of_file(file), (uint64_t)length, 0);
    unlock();
  }
  return done;
}

int ftruncate(int file, off_t length) { return truncate_file(file, length); }
int ftruncate64(int file, off64_t length) { return truncate_file(file, length); }

static int rename_file(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  char old[PATH_MAX], new[PATH_MAX];
  path_of(from_folder, from, old);
  path_of(to_folder, to, new);
  const char *counted = old[0] ? old : new;
  if (disturb(RENAME, counted) < 0) return -1;
  if (counted[0]) lock();
  uint64_t inode = counted[0] ? inode_of(old) : 0;
  int done = (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (counted[0]) {
    if (done == 0) note(RENAME, old, new, NULL, 0, inode, 0, 0);
    unlock();
  }
  return done;
}

int rename(const char *from, const char *to) { return rename_file(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) { return rename_file(from_folder, from, to_folder, to, 0); }
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  return rename_file(from_folder, from, to_folder, to, flags);
}

static int open_file(int folder, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX] = "";
  if (!shared || !(flags & (O_CREAT | O_TRUNC))) return (int)syscall(SYS_openat, folder, name, flags, mode);
  path_of(folder, name, path);
  if (disturb(OPEN, path) < 0) return -1;
  if (path[0]) lock();
  int is_new = path[0] && inode_of(path) == 0;
  int file = (int)syscall(SYS_openat, folder, name, flags, mode);
  if (path[0]) {
    if (file >= 0 && (is_new || (flags & O_TRUNC)))
      note(OPEN, path, "", NULL, 0, inode_of_file(file), 0, (uint64_t)(is_new ? 1 : 2));
    unlock();
  }
  return file;
}

static mode_t mode_of(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; }

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = mode_of(flags, more); \
    va_end(more); \
    return open_file(AT_FDCWD, path, flags, mode); \
  }
#define OPENS_AT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = mode_of(flags, more); \
    va_end(more); \
    return open_file(folder, path, flags, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
int creat(const char *path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int mkdirat(int folder, const char *name, mode_t mode) {
  char path[PATH_MAX];
  if (disturb(MKDIR, path_of(folder, name, path)) < 0) return -1;
  if (path[0]) lock();
  int done = (int)syscall(SYS_mkdirat, folder, name, mode);
  if (path[0]) {
    if (done == 0) note(MKDIR, path, "", NULL, 0, inode_of(path), 0, 0);
    unlock();
  }
  return done;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int unlinkat(int folder, const char *name, int flags) {
  char path[PATH_MAX];
  enum kind kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
  if (disturb(kind, path_of(folder, name, path)) < 0) return -1;
  if (path[0]) lock();
  uint64_t inode = path[0] ? inode_of(path) : 0;
  int done = (int)syscall(SYS_unlinkat, folder, name, flags);
  if (path[0]) {
    if (done == 0) note(kind, path, "", NULL, 0, inode, 0, 0);
    unlock();
  }
  return done;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int symlinkat(const char *target, int folder, const char *name) {
  char path[PATH_MAX];
  if (disturb(SYMLINK, path_of(folder, name, path)) < 0) return -1;
  if (path[0]) lock();
  int done = (int)syscall(SYS_symlinkat, target, folder, name);
  if (path[0]) {
    if (done == 0) note(SYMLINK, path, "", target, strlen(target), inode_of(path), 0, 0);
    unlock();
  }
  return done;
}

int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  char old[PATH_MAX], new[PATH_MAX];
  path_of(from_folder, from, old);
  if (disturb(LINK, path_of(to_folder, to, new)) < 0) return -1;
  if (new[0]) lock();
  int done = (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
  if (new[0]) {
    if (done == 0) note(LINK, old, new, NULL, 0, inode_of(new), 0, 0);
    unlock();
  }
  return done;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  int done = (int)syscall(SYS_clock_gettime, clock, now);
  if (done == 0 && clock == CLOCK_REALTIME) now->tv_sec += clock_seconds;
  return done;
}
