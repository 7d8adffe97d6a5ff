/* A stand-in for `python`: hands its command line to a process that has imported torch already (server.py).
 *
 * The server's socket is `socket` in the folder of this program, the real interpreter `real` there. What the server
 * cannot do as a fresh interpreter would (another command line than `[-ISu] -c CODE`, preloaded libraries, PYTHON...
 * variables) is left to the real one, and so is everything once the server is gone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static int server = -1;
static const int forwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};

static void forward(int number) {
    char byte = (char)number;
    int kept = errno;
    send(server, &byte, 1, MSG_NOSIGNAL);
    errno = kept;
}

static int fits(int argc, char **argv) {
    int at = 1;
    while (at < argc && (!strcmp(argv[at], "-I") || !strcmp(argv[at], "-S") || !strcmp(argv[at], "-u")))
        at++;
    if (at + 1 >= argc || strcmp(argv[at], "-c"))
        return 0;
    for (char **one = environ; *one; one++)
        if (!strncmp(*one, "LD_", 3) ||
            (!strncmp(*one, "PYTHON", 6) && strncmp(*one, "PYTHONDONTWRITEBYTECODE=", 24) &&
             strncmp(*one, "PYTHONUNBUFFERED=", 17)))
            return 0;
    return 1;
}

static int send_all(const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(server, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int hand_over(int argc, char **argv) {
    size_t size = 0, count = 0;
    for (int i = 0; i < argc; i++)
        size += strlen(argv[i]) + 1;
    for (char **one = environ; *one; one++, count++)
        size += strlen(*one) + 1;
    char *text = malloc(size ? size : 1), *end = text;
    if (!text)
        return -1;
    for (int i = 0; i < argc; i++)
        end = stpcpy(end, argv[i]) + 1;
    for (char **one = environ; *one; one++)
        end = stpcpy(end, *one) + 1;
    uint32_t head[2] = {(uint32_t)argc, (uint32_t)size};
    int fds[4] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (fds[3] < 0)
        return -1;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof fds)];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {head, sizeof head};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *passed = CMSG_FIRSTHDR(&message);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(passed), fds, sizeof fds);
    if (sendmsg(server, &message, MSG_NOSIGNAL) != sizeof head)
        return -1;
    return send_all(text, size);
}

int main(int argc, char **argv) {
    char folder[96];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length <= 0 || length >= (ssize_t)sizeof folder - 1) {
        fprintf(stderr, "the stand-in for python: its folder is unknown or has too long a name\n");
        return 126;
    }
    folder[length] = 0;
    *strrchr(folder, '/') = 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder);
    char real[sizeof folder + 8];
    snprintf(real, sizeof real, "%s/real", folder);
    server = fits(argc, argv) ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address)) {
        char target[4096];
        ssize_t size = readlink(real, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        argv[0] = target;
        execv(target, argv);
        perror(target);
        return 127;
    }
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) {
        struct sigaction action = {.sa_handler = forward, .sa_flags = SA_RESTART};
        struct sigaction before;
        sigaction(forwarded[i], NULL, &before);
        if (before.sa_handler != SIG_IGN)
            sigaction(forwarded[i], &action, NULL);
    }
    if (hand_over(argc, argv)) {
        perror("the stand-in for python");
        return 126;
    }
    /* So that pipes end when those of the real process do. */
    close(0);
    close(1);
    close(2);
    int32_t status;
    size_t got = 0;
    while (got < sizeof status) {
        ssize_t more = recv(server, (char *)&status + got, sizeof status - got, 0);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return 125;
        got += (size_t)more;
    }
    if (status < 0) {
        signal(-status, SIG_DFL);
        kill(getpid(), -status);
        pause();
    }
    return status;
}
