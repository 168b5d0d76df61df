/* shim.py once more in C, for machines with a compiler: the same words, orders, files and steps for a third of the cost.
 *
 * What is meant, and why, stands in shim.py under the same names; the tests run on both. It is never needed: where it
 * cannot be compiled or started, shim.py does the same. Text is bytes here: JSON's escapes of single bytes (\udc80 to
 * \udcff, as Python writes names that are no UTF-8) are those bytes.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FORMAT 1
#define BLOCK 4096
#define CHUNK 65536
#define INLINE 16384
#define COOKIE "SCHEDULER_COOKIE"
#define GROUP "scheduler-"
#define TICK 5.0
#define TOUCH (6 * 3600.0)
#define LINGER 0.1
#define LEFTOVER_GRACE 2.0
#define ENDING 20.0
#define OOM_SCORE 500
#define LOG_MAX (1LL << 30)
#define LOG_RATE (double)(1 << 30)
#define LOG_LOOKS_LEAST 0.01
#define LOG_LOOKS_MOST 1.0
#define COLLAPSE_RANGE 8
#define SYS_CLONE3 435
#define INTO_CGROUP 0x200000000ULL
#define LONGEST_TEXT 400
#define DEFAULT_PATH "/bin:/usr/bin"
#define CREATE (O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW)

/* ---- memory for one order: all of it is let go, and wiped, when its attempt is over ---- */

static struct chunk {
    struct chunk *next;
    size_t used, size;
    char of[];
} *chunks;

/* Zeros; 0: there is no more. */
static void *take(size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (!chunks || chunks->size - chunks->used < size) {
        size_t most = size > CHUNK ? size : CHUNK;
        struct chunk *more = calloc(1, sizeof *more + most);
        if (!more) return 0;
        more->size = most;
        more->next = chunks;
        chunks = more;
    }
    chunks->used += size;
    return chunks->of + chunks->used - size;
}

/* Nothing of an order is left where the next one's will lie; one chunk is kept for it. */
static void let_go(void)
{
    while (chunks && (chunks->next || chunks->size > CHUNK)) {
        struct chunk *last = chunks;
        chunks = last->next;
        explicit_bzero(last->of, last->used);
        free(last);
    }
    if (!chunks) return;
    explicit_bzero(chunks->of, chunks->used);
    chunks->used = 0;
}

/* ---- JSON: read into a tree, in place; written into a buffer ---- */

enum kind { NOTHING, TRUTH, NUMBER, TEXT, LIST, OBJECT };

struct value {
    enum kind kind;
    double number;
    char *text;
    char *name; /* in an object */
    struct value *first, *next;
};

struct reader {
    char *at, *end;
    int bad;
};

static int holds_null; /* somewhere in what was read: nothing can be started with that */

static struct value *read_value(struct reader *r);

static void skip_blanks(struct reader *r)
{
    while (r->at < r->end && isspace((unsigned char)*r->at)) r->at++;
}

static int accepts(struct reader *r, char wanted)
{
    skip_blanks(r);
    if (r->at < r->end && *r->at == wanted) return r->at++, 1;
    return 0;
}

static unsigned read_hex(struct reader *r)
{
    unsigned value = 0;
    for (int i = 0; i < 4 && r->at < r->end; i++, r->at++) {
        int c = tolower((unsigned char)*r->at);
        if (!isxdigit(c)) r->bad = 1;
        value = value * 16 + (isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return value;
}

static char *put_utf8(char *to, unsigned code)
{
    if (code < 0x80) return *to++ = code, to;
    if (code >= 0xdc80 && code <= 0xdcff) return *to++ = code - 0xdc00, to;
    if (code < 0x800) {
        *to++ = 0xc0 | code >> 6;
    } else {
        if (code < 0x10000) {
            *to++ = 0xe0 | code >> 12;
        } else {
            *to++ = 0xf0 | code >> 18;
            *to++ = 0x80 | (code >> 12 & 0x3f);
        }
        *to++ = 0x80 | (code >> 6 & 0x3f);
    }
    *to++ = 0x80 | (code & 0x3f);
    return to;
}

static char *read_escape(struct reader *r, char *to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *known = c ? strchr(from, c) : 0;
    if (known) return *to++ = into[known - from], to;
    if (c != 'u') return r->bad = 1, to;
    unsigned code = read_hex(r);
    if (code >= 0xd800 && code < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        code = 0x10000 + ((code - 0xd800) << 10) + (read_hex(r) - 0xdc00);
    }
    if (!code) holds_null = 1;
    return put_utf8(to, code);
}

/* Where it stands: read, it is never longer than it was written. */
static char *read_text(struct reader *r)
{
    if (!accepts(r, '"')) return r->bad = 1, r->at;
    char *text = r->at, *to = text;
    while (r->at < r->end && *r->at != '"' && !r->bad) {
        if (*r->at == '\\') {
            r->at++;
            to = read_escape(r, to);
        } else {
            *to++ = *r->at++;
        }
    }
    if (r->at++ >= r->end) r->bad = 1;
    *to = 0;
    return text;
}

static void read_members(struct reader *r, struct value *of, char close)
{
    struct value **last = &of->first;
    if (accepts(r, close)) return;
    do {
        char *name = 0;
        if (of->kind == OBJECT) {
            skip_blanks(r);
            name = read_text(r);
            if (!accepts(r, ':')) r->bad = 1;
        }
        struct value *member = r->bad ? 0 : read_value(r);
        if (!member) return;
        member->name = name;
        *last = member;
        last = &member->next;
    } while (accepts(r, ','));
    if (!accepts(r, close)) r->bad = 1;
}

static struct value *read_value(struct reader *r)
{
    struct value *v = take(sizeof *v);
    skip_blanks(r);
    if (!v || r->at >= r->end) return r->bad = 1, v;
    size_t left = r->end - r->at;
    if (*r->at == '"') {
        v->kind = TEXT;
        v->text = read_text(r);
    } else if (*r->at == '[' || *r->at == '{') {
        v->kind = *r->at == '[' ? LIST : OBJECT;
        read_members(r, v, *r->at++ == '[' ? ']' : '}');
    } else if (left >= 4 && !memcmp(r->at, "null", 4)) {
        r->at += 4;
    } else if (left >= 4 && !memcmp(r->at, "true", 4)) {
        v->kind = TRUTH, v->number = 1, r->at += 4;
    } else if (left >= 5 && !memcmp(r->at, "false", 5)) {
        v->kind = TRUTH, r->at += 5;
    } else {
        char *end;
        v->kind = NUMBER;
        v->number = strtod(r->at, &end);
        if (end == r->at) r->bad = 1;
        r->at = end;
    }
    return v;
}

/* Everything that a memfd holds, which ends in a zero here; 0: it cannot be read. */
static char *read_whole(int fd, size_t *length)
{
    struct stat status;
    if (fstat(fd, &status)) return 0;
    char *data = take(status.st_size + 1);
    size_t got = 0;
    ssize_t now = 1;
    while (data && got < (size_t)status.st_size && now > 0) {
        now = pread(fd, data + got, status.st_size - got, got);
        got += now > 0 ? now : 0;
    }
    *length = got;
    return data;
}

static struct value *parsed(char *data, size_t length)
{
    struct reader r = {data, data + length, 0};
    struct value *v = read_value(&r);
    return r.bad ? 0 : v;
}

static struct value *read_json(int fd)
{
    size_t length;
    char *data = read_whole(fd, &length);
    return data ? parsed(data, length) : 0;
}

static struct value *member(struct value *of, const char *name)
{
    for (struct value *v = of ? of->first : 0; v; v = v->next)
        if (v->name && !strcmp(v->name, name)) return v;
    return 0;
}

static double number_of(struct value *of, const char *name, double otherwise)
{
    struct value *v = member(of, name);
    return v && (v->kind == NUMBER || v->kind == TRUTH) ? v->number : otherwise;
}

static char *text_of(struct value *of, const char *name)
{
    struct value *v = member(of, name);
    return v && v->kind == TEXT ? v->text : "";
}

static char **words_of(struct value *of, const char *name)
{
    struct value *list = member(of, name);
    int count = 0;
    for (struct value *v = list ? list->first : 0; v; v = v->next) count++;
    char **words = take((count + 1) * sizeof *words);
    if (!words) return 0;
    count = 0;
    for (struct value *v = list ? list->first : 0; v; v = v->next) words[count++] = v->text ? v->text : "";
    return words;
}

struct text {
    char data[BLOCK];
    size_t length;
};

static void put(struct text *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(to->data + to->length, sizeof to->data - to->length, format, arguments);
    va_end(arguments);
    to->length += length;
    if (to->length >= sizeof to->data) to->length = sizeof to->data; /* it fits no block: whoever packs it will say so */
}

/* How many bytes of UTF-8 begin here, and what they mean; a byte that belongs to none is one by itself. */
static int get_utf8(const unsigned char *from, unsigned *code)
{
    int more = *from >= 0xf0 && *from < 0xf5 ? 3 : *from >= 0xe0 && *from < 0xf0 ? 2 : *from >= 0xc2 && *from < 0xe0;
    *code = more ? *from & (0x3f >> more) : *from;
    for (int i = 1; i <= more; i++) {
        if ((from[i] & 0xc0) != 0x80) {
            more = 0;
            break;
        }
        *code = *code << 6 | (from[i] & 0x3f);
    }
    if (*from < 0x80) return 1;
    int wrong = (more == 2 && (*code < 0x800 || (*code >= 0xd800 && *code < 0xe000))) ||
                (more == 3 && (*code < 0x10000 || *code > 0x10ffff));
    if (!more || wrong) return *code = 0xdc00 + *from, 1;
    return more + 1;
}

static void put_text(struct text *to, const char *text)
{
    put(to, "\"");
    for (const unsigned char *at = (const unsigned char *)text; *at && to->length < BLOCK - 1000;) {
        unsigned code;
        at += get_utf8(at, &code);
        if (code >= 0x10000) {
            put(to, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
        } else if (code < 0x20 || code > 0x7e || code == '"' || code == '\\') {
            put(to, "\\u%04x", code);
        } else {
            to->data[to->length++] = code;
        }
    }
    put(to, "\"");
}

static uint32_t checksum(const char *data, size_t length)
{
    static uint32_t of_half[16];
    for (uint32_t i = 1; i < 16 && !of_half[15]; i++) {
        of_half[i] = i;
        for (int j = 0; j < 4; j++) of_half[i] = of_half[i] >> 1 ^ (of_half[i] & 1 ? 0xedb88320u : 0);
    }
    uint32_t crc = ~0u;
    while (length--) {
        crc ^= (unsigned char)*data++;
        crc = crc >> 4 ^ of_half[crc & 15];
        crc = crc >> 4 ^ of_half[crc & 15];
    }
    return ~crc;
}

static int pack_block(char *block, const struct text *values)
{
    if (values->length + 10 > BLOCK) return errno = EMSGSIZE, -1;
    memset(block, 0, BLOCK);
    int length = sprintf(block, "%08x ", checksum(values->data, values->length));
    memcpy(block + length, values->data, values->length);
    block[length + values->length] = '\n';
    return 0;
}

/* ---- what /proc says ---- */

static size_t read_file(const char *path, char *to, size_t most)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = 1;
    while (fd >= 0 && got > 0 && length < most - 1) {
        got = read(fd, to + length, most - 1 - length);
        length += got > 0 ? got : 0;
    }
    if (fd >= 0) close(fd);
    while (length && isspace((unsigned char)to[length - 1])) length--;
    to[length] = 0;
    return length;
}

static long long oom_kills(void)
{
    static char text[1 << 16];
    read_file("/proc/vmstat", text, sizeof text);
    char *found = strstr(text, "\noom_kill ");
    return found ? atoll(found + 10) : 0;
}

/* A field of /proc/PID/stat, counted from the state, which is 0. */
static long long stat_field(pid_t pid, int field)
{
    char path[64], text[2048];
    sprintf(path, "/proc/%d/stat", pid);
    read_file(path, text, sizeof text);
    char *at = strrchr(text, ')');
    for (at = at ? at + 1 : 0; at && field >= 0; field--) {
        at = strchr(at, ' ');
        at = at ? at + 1 : 0;
    }
    return at ? atoll(at) : 0;
}

static long long start_time(pid_t pid)
{
    return stat_field(pid, 19);
}

struct pids {
    pid_t *of;
    int count;
};

static void add_pid(struct pids *to, pid_t pid)
{
    for (int i = 0; i < to->count; i++)
        if (to->of[i] == pid) return;
    pid_t *more = realloc(to->of, (to->count + 1) * sizeof *more);
    if (!more) return;
    to->of = more;
    to->of[to->count++] = pid;
}

static void add_listed(struct pids *to, pid_t pid)
{
    static char text[1 << 16];
    char path[96];
    sprintf(path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    struct dirent *entry;
    while (threads && (entry = readdir(threads))) {
        if (!isdigit((unsigned char)*entry->d_name)) continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", pid, entry->d_name);
        read_file(path, text, sizeof text);
        for (char *at = text, *end; *at; at = end) {
            pid_t child = strtol(at, &end, 10);
            if (end == at) break;
            add_pid(to, child);
        }
    }
    if (threads) closedir(threads);
}

static void add_scanned(struct pids *to, pid_t parent)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc)))
        if (isdigit((unsigned char)*entry->d_name) && stat_field(atoi(entry->d_name), 1) == parent)
            add_pid(to, atoi(entry->d_name));
    if (proc) closedir(proc);
}

static struct pids own_tree(void)
{
    static struct pids found;
    char path[96];
    sprintf(path, "/proc/self/task/%d/children", getpid());
    int listed = !access(path, F_OK);
    found.count = 0;
    (listed ? add_listed : add_scanned)(&found, getpid());
    for (int i = 0; i < found.count; i++) (listed ? add_listed : add_scanned)(&found, found.of[i]);
    return found;
}

static int signal_all(struct pids pids, int first, int second)
{
    for (int i = 0; i < pids.count; i++) kill(pids.of[i], first);
    for (int i = 0; second && i < pids.count; i++) kill(pids.of[i], second);
    return pids.count;
}

/* ---- the control group of an attempt ---- */

static void kill_group(const char *group)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/cgroup.kill", group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "1", 1) < 0) errno = 0; /* whoever is left is found as a descendant */
    close(fd);
}

static int is_empty_group(const char *group)
{
    char path[PATH_MAX + 16], text[256];
    snprintf(path, sizeof path, "%s/cgroup.events", group);
    read_file(path, text, sizeof text);
    return strstr(text, "populated 0") != 0;
}

static void remove_group(const char *group);

static void remove_below(const char *group)
{
    char below[PATH_MAX];
    DIR *folder = opendir(group);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (entry->d_type != DT_DIR || *entry->d_name == '.') continue;
        if (snprintf(below, sizeof below, "%s/%s", group, entry->d_name) < (int)sizeof below) remove_group(below);
    }
    if (folder) closedir(folder);
}

static void remove_group(const char *group)
{
    if (!rmdir(group) || (errno != EBUSY && errno != ENOTEMPTY)) return;
    remove_below(group);
    rmdir(group);
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* ---- one attempt ---- */

static struct {
    char boot_id[64], machine_id[128], hostname[256], groups[PATH_MAX], group[PATH_MAX];
    struct value *env, *bounds;
    int output[2], holds_null, folder; /* of its group, while that is open */
    long long start; /* of this shim */
    sigset_t blocked, waited;
} home = {.output = {-1, -1}, .folder = -1};

static struct order {
    int task, attempt, stop_signal, spare, cgroup, warn_signal, held[2], helds;
    char **argv, **ending, *group, *directory, *folder, *cookie, *lease, *out, *err;
    double timeout, grace, warn;
    long long log_max;
    struct value *env;
} order;

static int sock = -1;   /* where answers go; -1 once there are no more */
static int has_started; /* so that the scheduler waits for no other answer than the end */

static int read_order(struct value *said)
{
    if (!said || said->kind != OBJECT) return -1;
    struct value *warn = member(said, "warn");
    order.task = number_of(said, "task", 0);
    order.attempt = number_of(said, "attempt", 0);
    order.argv = words_of(said, "argv");
    order.ending = words_of(said, "ending");
    order.directory = text_of(said, "directory");
    order.env = member(said, "env");
    order.folder = text_of(said, "folder");
    order.cookie = text_of(said, "cookie");
    order.timeout = number_of(said, "timeout", INFINITY);
    order.grace = number_of(said, "grace", 30.0);
    order.stop_signal = number_of(said, "stop_signal", SIGTERM);
    order.lease = text_of(said, "lease");
    order.warn_signal = warn && warn->first ? (int)warn->first->number : 0;
    order.warn = warn && warn->first && warn->first->next ? warn->first->next->number : 0.0;
    order.log_max = number_of(said, "log_max", LOG_MAX);
    order.spare = number_of(said, "spare", 0);
    order.cgroup = number_of(said, "cgroup", 1);
    order.group = "";
    order.out = text_of(said, "stdout");
    order.err = text_of(said, "stderr");
    return order.argv && order.ending && *order.argv ? 0 : -1;
}

static void path_of(char *to, const char *mark, const char *kind)
{
    snprintf(to, PATH_MAX, "%s/%s%d%s", order.folder, mark, order.attempt, kind);
}

static void tell(const struct text *message)
{
    if (send(sock, message->data, message->length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return; /* then it finds the claim */
}

/* Whoever ordered it hears of it, or the log is where people look. */
static void tell_failure(const char *what)
{
    char said[LONGEST_TEXT + 1], path[PATH_MAX];
    snprintf(said, sizeof said, "[Errno %d] %s: '%s'", errno, strerror(errno), what);
    if (sock >= 0 && !has_started) {
        struct text message = {.length = 0};
        put(&message, "{\"failed\": {\"task\": %d, \"attempt\": %d, \"error\": ", order.task, order.attempt);
        put_text(&message, said);
        put(&message, "}}");
        tell(&message);
        return;
    }
    path_of(path, "", ".log");
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log >= 0) dprintf(log, "scheduler: the shim of this attempt failed: %s\n", said);
}

static void give_up(const char *what)
{
    tell_failure(what);
    _exit(0);
}

/* ---- the log, and the folder it is in ---- */

static void make_folder(char *path)
{
    if (!mkdir(path, 0700) || errno == EEXIST) return;
    char *slash = strrchr(path, '/');
    if (errno != ENOENT || !slash || slash == path) give_up(path);
    *slash = 0;
    make_folder(path);
    *slash = '/';
    if (mkdir(path, 0700) && errno != EEXIST) give_up(path);
}

static struct {
    int fd;
    long long most, block, head, missing, last_size;
    double next_look, last_look;
} task_log;

static void open_log(void)
{
    char path[PATH_MAX];
    path_of(path, "", ".log");
    memset(&task_log, 0, sizeof task_log);
    task_log.most = order.log_max;
    for (int i = 0; i < 3; i++) { /* an attempt before may have it removed at this moment */
        make_folder(order.folder);
        task_log.fd = open(path, CREATE | O_APPEND, 0600);
        if (task_log.fd >= 0 || errno != ENOENT) break;
    }
    if (task_log.fd < 0) give_up(path);
}

/* The task's own descriptor writes only at the end. */
static int open_to_cut(void)
{
    char path[64];
    struct statvfs disk;
    sprintf(path, "/proc/self/fd/%d", task_log.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &disk)) return fd;
    task_log.block = (long long)disk.f_bsize <= task_log.most / 8 ? (long long)disk.f_bsize : 1;
    task_log.head = task_log.most / 4 / task_log.block * task_log.block;
    return fd;
}

static void move_log(int fd, long long length)
{
    static char data[1 << 16];
    long long source = task_log.head + length, target = task_log.head;
    ssize_t got;
    while ((got = pread(fd, data, sizeof data, source)) > 0) {
        if (pwrite(fd, data, got, target) < got) return;
        source += got, target += got;
    }
    if (ftruncate(fd, target)) return;
}

static const char *grouped(long long number, char *to)
{
    char digits[32];
    int length = sprintf(digits, "%lld", number), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) to[at++] = ',';
        to[at++] = digits[i];
    }
    to[at] = 0;
    return to;
}

static void cut_log(long long size)
{
    char note[256], missing[48], most[48];
    int fd = open_to_cut();
    if (fd >= 0 && !task_log.block) close(fd), fd = -1;
    if (fd < 0) return;
    long long length = (size - task_log.head - task_log.most / 4) / task_log.block * task_log.block;
    if (fallocate(fd, COLLAPSE_RANGE, task_log.head, length)) move_log(fd, length);
    task_log.missing += length;
    int written = sprintf(
        note, "\n[scheduler: %s KiB of output are missing here: the log is kept below %s KiB (--log-max)]\n",
        grouped(task_log.missing >> 10, missing), grouped(task_log.most >> 10, most));
    if (pwrite(fd, note, written, task_log.head) < 0) errno = 0; /* the task is worth more than its log */
    close(fd);
}

static void look_at_log(double now)
{
    struct stat status = {0};
    fstat(task_log.fd, &status);
    double rate = (status.st_size - task_log.last_size) / fmax(now - task_log.last_look, LOG_LOOKS_LEAST);
    if (status.st_size > task_log.most / 4 * 3) {
        cut_log(status.st_size);
        fstat(task_log.fd, &status);
    }
    task_log.last_look = now;
    task_log.last_size = status.st_size;
    double room = (task_log.most - status.st_size) / fmax(2 * rate, LOG_RATE);
    task_log.next_look = now + fmin(fmax(room, LOG_LOOKS_LEAST), LOG_LOOKS_MOST);
}

/* ---- until nothing of its tree is left ---- */

static struct {
    pid_t main, helper;
    int has_ended, status, leftovers, left, has_to_end, group_killed;
    long max_rss;
    const char *why;
    double cpu_seconds, began, last, now, limit, warn_at, stop_at, term_at, kill_at, pause, helper_until, touch_at;
} watch;

static double next_step(void)
{
    return fmin(watch.stop_at, fmin(watch.term_at, watch.kill_at));
}

static void main_ended(int status)
{
    watch.has_ended = 1;
    watch.status = status;
    watch.limit = watch.warn_at = INFINITY;
    watch.term_at = watch.now + (watch.why ? 0 : LINGER);
    if (!watch.why) watch.kill_at = watch.now + LEFTOVER_GRACE;
}

/* What one that has ended used, and whom it had collected itself. */
static void count_in(const struct rusage *used)
{
    watch.max_rss = used->ru_maxrss > watch.max_rss ? used->ru_maxrss : watch.max_rss;
    watch.cpu_seconds += used->ru_utime.tv_sec + used->ru_stime.tv_sec;
    watch.cpu_seconds += (used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;
}

/* Collect who has ended; are there others? */
static int reap(void)
{
    double last = watch.last;
    watch.last = seconds_of(CLOCK_BOOTTIME);
    watch.now += fmin(watch.last - last, TICK + 1.0);
    for (;;) {
        int status;
        struct rusage used;
        pid_t pid = wait4(-1, &status, WNOHANG, &used);
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) return 0;
        if (!pid) return 1;
        count_in(&used);
        if (pid == watch.main) main_ended(status);
        if (pid == watch.helper) watch.helper = 0;
    }
}

static void stop(const char *why)
{
    watch.why = why;
    watch.limit = watch.warn_at = INFINITY;
    watch.stop_at = watch.now;
}

static void fork_helper(void)
{
    sigset_t none;
    sigemptyset(&none);
    pid_t pid = fork();
    if (!pid) {
        setsid();
        sigprocmask(SIG_SETMASK, &none, 0);
        execv(order.ending[0], order.ending);
        _exit(127);
    }
    watch.helper = pid > 0 ? pid : 0;
}

static int may_signal(void)
{
    if (watch.has_to_end) {
        watch.has_to_end = 0;
        watch.helper_until = watch.now + ENDING;
        fork_helper();
    }
    if (watch.helper && watch.now >= watch.helper_until) {
        kill(watch.helper, SIGKILL);
        watch.helper = 0;
    }
    return !watch.helper;
}

static void signal_tree(void)
{
    if (watch.now >= watch.stop_at) {
        watch.stop_at = INFINITY;
        watch.kill_at = fmin(watch.kill_at, watch.now + order.grace);
        if (!watch.has_ended) {
            kill(watch.main, order.stop_signal);
            kill(watch.main, SIGCONT);
        }
    }
    if (watch.now >= watch.term_at) {
        watch.term_at = INFINITY;
        watch.leftovers = signal_all(own_tree(), SIGTERM, SIGCONT);
    }
    if (watch.now >= watch.kill_at) {
        if (*order.group) kill_group(order.group), watch.group_killed = 1;
        signal_all(own_tree(), SIGSTOP, SIGKILL);
    }
}

static void act(void)
{
    struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    if (watch.now >= task_log.next_look) look_at_log(watch.now);
    if (watch.now >= watch.touch_at) {
        watch.touch_at = watch.now + TOUCH;
        if (*order.lease) utimensat(AT_FDCWD, order.lease, now, AT_SYMLINK_NOFOLLOW);
    }
    if (watch.now >= watch.warn_at && order.warn_signal) {
        watch.warn_at = INFINITY;
        kill(watch.main, order.warn_signal);
    }
    if (watch.now >= watch.limit) stop("timeout");
    if (watch.now >= next_step() && may_signal()) signal_tree();
}

/* Whether TERM ended it; where we got one too, a session or the machine is being ended, and it by that. */
static int ended_by_term(void)
{
    return watch.has_ended && WIFSIGNALED(watch.status) && WTERMSIG(watch.status) == SIGTERM;
}

/* Stop or kill, unless the task ended by itself just before. */
static void obey(int number)
{
    reap();
    if (!watch.why && (!watch.has_ended || (number == SIGTERM && ended_by_term()))) stop("stopped");
    if (number == SIGUSR1) watch.kill_at = watch.now;
}

static struct timespec as_time(double seconds)
{
    return (struct timespec){(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
}

static void wait_for_news(void)
{
    if (watch.now >= watch.kill_at && !watch.helper) {
        struct timespec pause = as_time(watch.pause);
        nanosleep(&pause, 0);
        watch.pause = fmin(watch.pause * 2, 1.0);
        return;
    }
    double due = watch.helper ? watch.helper_until : next_step();
    double next = fmin(fmin(watch.limit, watch.warn_at), fmin(due, fmin(task_log.next_look, watch.touch_at)));
    struct timespec most = as_time(fmin(fmax(next - watch.now, 0.0), TICK));
    int number = sigtimedwait(&home.waited, 0, &most);
    if (number > 0 && number != SIGCHLD) obey(number);
}

static void watch_over(pid_t main)
{
    memset(&watch, 0, sizeof watch);
    watch.main = main;
    watch.has_to_end = *order.ending != 0;
    watch.began = watch.last = seconds_of(CLOCK_BOOTTIME);
    watch.limit = order.timeout;
    watch.warn_at = order.warn_signal ? order.timeout - order.warn : INFINITY;
    watch.stop_at = watch.term_at = watch.kill_at = watch.helper_until = INFINITY;
    watch.pause = 0.001;
    watch.touch_at = TOUCH;
    while (reap()) {
        if (order.spare && watch.has_ended && !watch.why) {
            watch.left = 1;
            watch.leftovers = own_tree().count;
            break;
        }
        act();
        wait_for_news();
    }
    sigset_t pending;
    if (!watch.why && ended_by_term() && !sigpending(&pending) && sigismember(&pending, SIGTERM)) watch.why = "stopped";
    look_at_log(watch.now);
}

/* ---- the task, from the fork to the command ---- */

/* The code a shell would give, and what was wrong with what; the shim reads it where the command would begin. */
static void refuse(int channel, int code, const char *what, const char *why)
{
    char said[BLOCK];
    int most = strnlen(what, LONGEST_TEXT);
    while (most == LONGEST_TEXT && most > 0 && (what[most] & 0xc0) == 0x80) most--; /* no character is cut apart */
    int length = snprintf(said, sizeof said, "%d %.*s%s", code, most, what, why);
    if (send(channel, said, length, MSG_NOSIGNAL) < 0) _exit(1);
    _exit(1);
}

static void refuse_for(int channel, const char *what, int missing)
{
    char why[256];
    snprintf(why, sizeof why, ": %s", strerror(errno));
    refuse(channel, missing && errno == ENOENT ? 127 : 126, what, why);
}

static void set_bounds(int channel)
{
    static const struct {
        const char *name;
        int number;
    } known[] = {
        {"RLIMIT_AS", RLIMIT_AS}, {"RLIMIT_CORE", RLIMIT_CORE}, {"RLIMIT_CPU", RLIMIT_CPU},
        {"RLIMIT_DATA", RLIMIT_DATA}, {"RLIMIT_FSIZE", RLIMIT_FSIZE}, {"RLIMIT_MEMLOCK", RLIMIT_MEMLOCK},
        {"RLIMIT_MSGQUEUE", RLIMIT_MSGQUEUE}, {"RLIMIT_NICE", RLIMIT_NICE}, {"RLIMIT_NOFILE", RLIMIT_NOFILE},
        {"RLIMIT_NPROC", RLIMIT_NPROC}, {"RLIMIT_RSS", RLIMIT_RSS}, {"RLIMIT_RTPRIO", RLIMIT_RTPRIO},
        {"RLIMIT_RTTIME", RLIMIT_RTTIME}, {"RLIMIT_SIGPENDING", RLIMIT_SIGPENDING}, {"RLIMIT_STACK", RLIMIT_STACK},
    };
    struct value *mask = member(home.bounds, "umask"), *limits = member(home.bounds, "limits");
    if (mask) umask((mode_t)mask->number);
    for (struct value *v = limits ? limits->first : 0; v; v = v->next) {
        if (!v->first || !v->first->next) continue;
        double soft = v->first->number, hard = v->first->next->number;
        struct rlimit limit = {soft < 0 ? RLIM_INFINITY : (rlim_t)soft, hard < 0 ? RLIM_INFINITY : (rlim_t)hard};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(known[i].name, v->name) && setrlimit(known[i].number, &limit)) refuse_for(channel, v->name, 0);
    }
}

static void redirect(int channel)
{
    char why[256];
    const char *paths[] = {order.out, order.err};
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (order.attempt == 1 ? O_TRUNC : 0);
    for (int i = 0; i < 2; i++) {
        if (!*paths[i]) continue;
        int file = open(paths[i], flags, 0666);
        if (file < 0) {
            snprintf(why, sizeof why, " cannot take its output: %s", strerror(errno));
            refuse(channel, 126, paths[i], why);
        }
        dup2(file, i + 1);
    }
}

static const char *value_in(char **env, const char *name)
{
    size_t length = strlen(name);
    for (; *env; env++)
        if (!strncmp(*env, name, length) && (*env)[length] == '=') return *env + length + 1;
    return 0;
}

static char *joined(const char *name, char between, const char *text)
{
    char *made = take(strlen(name) + strlen(text) + 2);
    if (made) sprintf(made, "%s%c%s", name, between, text);
    return made;
}

/* The variables of the base, those of the order instead of or beside them, and the cookie. */
static char **merged_env(void)
{
    int count = 2, made = 0;
    struct value *parts[] = {home.env, order.env};
    for (int i = 0; i < 2; i++)
        for (struct value *v = parts[i] ? parts[i]->first : 0; v; v = v->next) count++;
    char **env = take(count * sizeof *env);
    for (int i = 0; env && i < 2; i++) {
        for (struct value *v = parts[i] ? parts[i]->first : 0; v; v = v->next) {
            if (v->kind != TEXT || !strcmp(v->name, COOKIE) || (!i && member(order.env, v->name))) continue;
            env[made++] = joined(v->name, '=', v->text);
        }
    }
    if (env) env[made] = joined(COOKIE, '=', order.cookie);
    return env;
}

/* execvp by the PATH of the task, not by ours. */
static void become_command(int channel, char **env)
{
    const char *file = order.argv[0], *path = value_in(env, "PATH");
    int first_error = 0;
    if (strchr(file, '/')) {
        execve(file, order.argv, env);
        refuse_for(channel, file, 1);
    }
    for (const char *at = path ? path : DEFAULT_PATH; at; at = *at ? at + 1 : 0) {
        size_t length = strcspn(at, ":");
        char *folder = strndup(at, length);
        char *found = length && folder ? joined(folder, '/', file) : strdup(file);
        if (found) execve(found, order.argv, env);
        if (errno != ENOENT && errno != ENOTDIR && !first_error) first_error = errno;
        at += length;
    }
    if (first_error) errno = first_error;
    refuse_for(channel, file, 1);
}

static int has_illegal_name(struct value *env)
{
    for (struct value *v = env ? env->first : 0; v; v = v->next)
        if (v->kind == TEXT && (!*v->name || strchr(v->name + 1, '='))) return 1;
    return 0;
}

static void raise_oom_score(void)
{
    char text[32] = "";
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0 && atoi(text) < OOM_SCORE) dprintf(fd, "%d", OOM_SCORE);
    if (fd >= 0) close(fd);
}

static void become_task(pid_t shim, int channel)
{
    char go[2];
    sigset_t none;
    sigemptyset(&none);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raise_oom_score();
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, 0);
    dup2(home.output[0] >= 0 ? home.output[0] : task_log.fd, 1);
    dup2(home.output[1] >= 0 ? home.output[1] : task_log.fd, 2);
    for (int i = 0; i < order.helds; i++) fcntl(order.held[i], F_SETFD, 0);
    char **env = merged_env();
    if (getppid() != shim || recv(channel, go, sizeof go, 0) <= 0) _exit(1);
    if (!env) refuse(channel, 126, "out of memory", "");
    if (holds_null) refuse(channel, 126, "embedded null byte", "");
    if (has_illegal_name(home.env) || has_illegal_name(order.env))
        refuse(channel, 126, "illegal environment variable name", "");
    set_bounds(channel);
    if (chdir(order.directory)) refuse_for(channel, order.directory, 0);
    redirect(channel);
    become_command(channel, env);
}

/* The call clone3, with CLONE_INTO_CGROUP: like fork, but for the group. */
static pid_t clone_into(int folder)
{
    uint64_t said[11] = {[0] = INTO_CGROUP, [4] = SIGCHLD, [10] = folder};
    return syscall(SYS_CLONE3, said, sizeof said);
}

static int open_group(const char *cookie)
{
    if (home.folder >= 0) return 1;
    if (!*home.groups) return 0;
    if (!*home.group && snprintf(home.group, PATH_MAX, "%s/%s%s", home.groups, GROUP, cookie) >= PATH_MAX) return 0;
    if (!mkdir(home.group, 0755)) home.folder = open(home.group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return home.folder >= 0;
}

static void close_group(void)
{
    if (home.folder < 0) return;
    close(home.folder);
    home.folder = -1;
    remove_group(home.group);
}

/* Fork, into the control group of this shim where that can be; `group` is where, or nothing. Tried twice, since a server
 * that starts removes those that are empty. */
static pid_t fork_into(char **group, const char *cookie)
{
    for (int i = 0; i < 2 && open_group(cookie); i++) {
        pid_t pid = clone_into(home.folder);
        if (pid >= 0) return *group = home.group, pid;
        close_group();
    }
    *group = "";
    return fork();
}

/* Nobody is in it any more; what a task made below it is not for the next one. Nor is a group that was killed: Linux
 * (6.18 at least) kills at birth whoever is forked into one. */
static void tidy_group(void)
{
    struct stat status;
    if (watch.group_killed) close_group(), *home.group = 0;
    if (home.folder >= 0 && (fstat(home.folder, &status) || status.st_nlink != 2)) remove_below(home.group);
}

static pid_t fork_task(int *channel)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) give_up("socketpair");
    pid_t shim = getpid(), pid = order.cgroup ? fork_into(&order.group, order.cookie) : fork();
    if (pid < 0) give_up("fork");
    if (!pid) {
        close(pair[0]);
        become_task(shim, pair[1]);
        _exit(1);
    }
    close(pair[1]);
    *channel = pair[0];
    return pid;
}

/* ---- claim and record ---- */

/* Locked first and shown then; it stays locked for as long as this descriptor is open. */
static int take_claim(const char *path, const struct text *claim)
{
    char temporary[PATH_MAX + 16], block[BLOCK];
    snprintf(temporary, sizeof temporary, "%s.%d", path, getpid());
    if (pack_block(block, claim)) give_up(path);
    int fd = open(temporary, CREATE | O_TRUNC, 0600);
    if (fd < 0) give_up(temporary);
    int failed = flock(fd, LOCK_EX | LOCK_NB) || write(fd, block, BLOCK) != BLOCK || link(temporary, path);
    int error = errno;
    unlink(temporary);
    errno = error;
    if (failed) give_up(path);
    return fd;
}

static void describe_claim(struct text *to, pid_t main, long long start)
{
    put(to, "{\"task\": %d, \"attempt\": %d, \"cookie\": ", order.task, order.attempt);
    put_text(to, order.cookie);
    put(to, ", \"shim\": %d, \"shim_start\": %lld", getpid(), home.start);
    put(to, ", \"pid\": %d, \"start\": %lld, \"boot_id\": ", main, start);
    put_text(to, home.boot_id);
    put(to, ", \"machine_id\": ");
    put_text(to, home.machine_id);
    put(to, ", \"hostname\": ");
    put_text(to, home.hostname);
    put(to, ", \"fence\": false, \"group\": ");
    put_text(to, order.group);
    put(to, ", \"format\": %d}", FORMAT);
}

static void describe_end(struct text *to, char *said)
{
    int exited = !WIFSIGNALED(watch.status), code = WEXITSTATUS(watch.status), has_code = exited;
    const char *outcome = watch.why ? watch.why : exited ? "exited" : "signalled", *error = "";
    if (*said) {
        outcome = "spawn";
        has_code = 1;
        code = strtol(said, &said, 10);
        error = *said ? said + 1 : said;
    }
    put(to, "{\"outcome\": \"%s\", \"error\": ", outcome);
    put_text(to, error);
    if (has_code) put(to, ", \"code\": %d", code);
    if (!exited) put(to, ", \"signal\": %d", WTERMSIG(watch.status));
    put(to, ", \"ended\": %.6f, \"seconds\": %.6f", seconds_of(CLOCK_REALTIME), seconds_of(CLOCK_BOOTTIME) - watch.began);
    put(to, ", \"max_rss\": %lld, \"leftovers\": %d", watch.max_rss * 1024LL, watch.leftovers);
    put(to, ", \"cpu_seconds\": %.6f", watch.cpu_seconds);
}

static void write_record(int fd, struct text *record, long long start, double began, long long kills, char *said)
{
    char block[BLOCK];
    int fine = !*said && WIFEXITED(watch.status) && !WEXITSTATUS(watch.status);
    describe_end(record, said);
    put(record, ", \"pid\": %d, \"start\": %lld, \"began\": %.6f", watch.main, start, began);
    put(record, ", \"oom_kills\": %lld, \"boot_id\": ", fine ? 0 : oom_kills() - kills);
    put_text(record, home.boot_id);
    put(record, ", \"format\": %d}", FORMAT);
    if (pack_block(block, record) || pwrite(fd, block, BLOCK, 0) != BLOCK || fsync(fd)) give_up("its exit record");
}

/* The end must be writable on a disk that is full by then. */
static int reserve_record(void)
{
    char path[PATH_MAX];
    path_of(path, ".record.", "");
    int fd = open(path, CREATE, 0600);
    if (fd < 0 || (errno = posix_fallocate(fd, 0, BLOCK))) give_up(path);
    return fd;
}

/* Whether it can be heard; who does not hear it finds claim and record. */
static int say(const char *what, struct text *how)
{
    struct iovec parts[] = {{(char *)what, strlen(what)}, {how->data, how->length}, {"}", 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    return sendmsg(sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static void let_go_of(int *fds, int *count)
{
    while (*count) close(fds[--*count]);
}

/* One attempt from its claim to its record; gives up, with nothing started, where that cannot be. */
static void run_attempt(int only)
{
    char path[PATH_MAX], said[BLOCK] = "";
    struct text claim = {.length = 0}, end = {.length = 0};
    int channel;
    open_log();
    pid_t main = fork_task(&channel);
    long long start = start_time(main);
    describe_claim(&claim, main, start);
    path_of(path, ".claim.", "");
    int lock = take_claim(path, &claim), record = reserve_record();
    double began = seconds_of(CLOCK_REALTIME);
    long long kills = oom_kills();
    if (send(channel, "go", 2, MSG_NOSIGNAL) < 0) errno = 0; /* it was killed before it could be told */
    say("{\"started\": ", &claim);
    has_started = 1;
    if (only) close(sock), sock = -1;
    watch_over(main);
    ssize_t length = recv(channel, said, sizeof said - 1, 0);
    said[length > 0 ? length : 0] = 0;
    write_record(record, &end, start, began, kills, said);
    if (!watch.left) tidy_group();
    if (!watch.left && *order.lease) unlink(order.lease); /* who is left keeps the lease's descriptor */
    if (only) return;
    struct stat status;
    int is_there = !fstat(record, &status) && status.st_nlink;
    int over[] = {channel, task_log.fd, record, lock}, count = 4;
    let_go_of(order.held, &order.helds);
    let_go_of(over, &count);
    int is_told = is_there && say("{\"ended\": ", &end); /* of a task whose files were deleted nobody may believe the end */
    if (!is_told) close_group(), _exit(0);
}

/* Whatever stop came too late for the attempt before is not meant for the next one. */
static void forget_signals(void)
{
    struct timespec now = {0, 0};
    while (sigtimedwait(&home.waited, 0, &now) > 0) continue;
}

/* What is held for it comes behind what it is read from, if that is not the word itself. */
static void obey_order(struct value *said, const int *held, int count, int only)
{
    if (read_order(said)) {
        errno = EBADMSG;
        give_up("its order");
    }
    for (order.helds = 0; order.helds < count; order.helds++) order.held[order.helds] = held[order.helds];
    run_attempt(only);
}

/* ---- the server, and the shims that it forks ---- */

static int take_descriptors(struct msghdr *message, int *fds)
{
    int count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(part), count * sizeof(int));
    }
    return count;
}

/* The next word that comes, and what came with it; -1: no more will come. */
static ssize_t hear(char *word, size_t most, int *fds, int *count)
{
    char control[CMSG_SPACE(3 * sizeof(int))];
    for (;;) {
        struct iovec into = {word, most};
        struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t length = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
        if (length < 0 && (errno == ECONNRESET || errno == EINTR)) continue;
        *count = length > 0 ? take_descriptors(&message, fds) : 0;
        return length > 0 ? length : -1;
    }
}

static int is(const char *word, ssize_t length, const char *wanted)
{
    return length == (ssize_t)strlen(wanted) && !memcmp(word, wanted, length);
}

static void become_shim(void)
{
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGCHLD, SIG_DFL);
    home.start = start_time(getpid());
    home.holds_null = holds_null;
    chunks = 0; /* what lies there is the server's, and stays */
}

/* One order after another over a channel of its own, each once the one before is over; one that is short is the word. */
static void serve_alone(void)
{
    char *word;
    int fds[3], count;
    ssize_t length;
    while (!watch.left && (word = take(INLINE + 1)) && (length = hear(word, INLINE, fds, &count)) > 0) {
        struct value *said = *word == '{' ? parsed(word, length) : count ? read_json(fds[0]) : 0;
        int own = *word != '{' && count;
        forget_signals();
        has_started = 0;
        obey_order(said, fds + own, count - own, 0);
        if (own) close(fds[0]);
        let_go();
        holds_null = home.holds_null;
    }
}

/* A shim: with a channel for its orders and answers, or for one order alone. */
static void fork_shim(int *fds, int count, int only)
{
    int server = sock;
    pid_t pid = fork();
    if (pid > 0) return;
    if (!only) sock = fds[0];
    if (pid < 0) {
        int error = errno;
        if (only) read_order(read_json(fds[0]));
        errno = error;
        tell_failure("its order");
        sock = server;
        return;
    }
    become_shim();
    if (only) {
        obey_order(read_json(fds[0]), fds + 1, count - 1, 1);
    } else {
        close(server);
        serve_alone();
    }
    if (!watch.left) close_group();
    _exit(0);
}

static void obey_word(const char *word, ssize_t length, int *fds, int count)
{
    if (is(word, length, "ready")) {
        struct text answer = {.length = 0};
        put(&answer, "{\"ready\": 1}");
        tell(&answer);
    } else if (!count) {
        return;
    } else if (is(word, length, "base")) {
        home.env = read_json(fds[0]);
    } else if (is(word, length, "bounds")) {
        home.bounds = read_json(fds[0]);
    } else if (is(word, length, "output")) {
        for (int i = 0; i < 2; i++) home.output[i] = fcntl(fds[i < count ? i : 0], F_DUPFD_CLOEXEC, 3);
    } else {
        fork_shim(fds, count, !is(word, length, "shim"));
    }
}

static void serve(void)
{
    char word[64];
    int fds[3], count;
    ssize_t length;
    while ((length = hear(word, sizeof word, fds, &count)) > 0) {
        obey_word(word, length, fds, count);
        let_go_of(fds, &count);
    }
}

/* The folder of the cgroup v2 that this process is in, if this user may make others in it. */
static void find_own_group(void)
{
    static const char *mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char text[8192] = "\n", procs[PATH_MAX + 16];
    read_file("/proc/self/cgroup", text + 1, sizeof text - 1);
    char *line = strstr(text, "\n0::");
    if (!line) return;
    line += 4;
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "/")) line = "";
    for (int i = 0; i < 2; i++) {
        snprintf(home.groups, sizeof home.groups, "%s%s", mounts[i], line);
        snprintf(procs, sizeof procs, "%s/cgroup.procs", home.groups);
        if (!access(procs, W_OK)) return;
    }
    *home.groups = 0;
}

/* What dead shims left there goes; whether one can be forked into and killed is tried. */
static void find_groups(void)
{
    char path[PATH_MAX], procs[PATH_MAX + 16], name[64], *group;
    find_own_group();
    DIR *folder = *home.groups ? opendir(home.groups) : 0;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, GROUP, strlen(GROUP))) continue;
        if (snprintf(path, sizeof path, "%s/%s", home.groups, entry->d_name) >= (int)sizeof path) continue;
        if (is_empty_group(path)) remove_group(path);
    }
    if (!folder) return;
    closedir(folder);
    sprintf(name, "try.%d", getpid());
    int alive[2]; /* where groups below one that was killed before are killed at birth, too, nothing is said there */
    if (pipe2(alive, O_CLOEXEC)) {
        *home.groups = 0;
        return;
    }
    pid_t pid = fork_into(&group, name);
    if (!pid) _exit(write(alive[1], "!", 1) != 1);
    close(alive[1]);
    ssize_t said = read(alive[0], procs, 1);
    close(alive[0]);
    while (pid > 0 && waitpid(pid, 0, 0) < 0 && errno == EINTR) continue;
    snprintf(procs, sizeof procs, "%s/cgroup.kill", group);
    if (!*group || said != 1 || access(procs, W_OK)) *home.groups = 0;
    close_group();
    *home.group = 0;
}

static void prepare(void)
{
    static const int waited[] = {SIGCHLD, SIGTERM, SIGUSR1}, others[] = {SIGINT, SIGHUP, SIGQUIT};
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    sigemptyset(&home.waited);
    for (int i = 0; i < 3; i++) sigaddset(&home.waited, waited[i]);
    home.blocked = home.waited;
    for (int i = 0; i < 3; i++) sigaddset(&home.blocked, others[i]);
    sigprocmask(SIG_SETMASK, &home.blocked, 0);
    read_file("/proc/sys/kernel/random/boot_id", home.boot_id, sizeof home.boot_id);
    read_file("/etc/machine-id", home.machine_id, sizeof home.machine_id);
    gethostname(home.hostname, sizeof home.hostname - 1);
    find_groups();
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    sock = atoi(argv[1]);
    fcntl(sock, F_SETFD, FD_CLOEXEC);
    prepare();
    if (chdir("/")) return 2;
    serve();
    return 0;
}
