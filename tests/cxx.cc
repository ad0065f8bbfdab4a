// A C++ program on ivc.h: the header compiles, the library links, bytes arrive.
#include <ivc.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

static int failed(const char *what)
{
    std::fprintf(stderr, "%s: %s\n", what, ivc_last_error());
    std::printf("not ok 1 - a C++ caller\n1..1\n");
    return 1;
}

static int talk(const std::string &path)
{
    ivc_options options{};
    ivc_context *a = nullptr, *b = nullptr;
    ivc_connection *out = nullptr, *in = nullptr;
    const std::string text(100000, 'x');
    std::vector<char> got(text.size());

    options.size = sizeof options;
    options.region = path.c_str();
    if (ivc_register_with(7, 1, &options, &a) != 0 || ivc_register_with(7, 2, &options, &b) != 0)
        return failed("register");
    if (ivc_connect(a, 2, &out) != 0 || ivc_accept_wait(b, 5000, &in) != 0)
        return failed("connect");
    if (ivc_write_all(out, text.data(), text.size(), 5000, nullptr) != 0
        || ivc_read_all(in, got.data(), got.size(), 5000, nullptr) != 0)
        return failed("transfer");
    if (std::memcmp(got.data(), text.data(), text.size()) != 0)
        return failed("content");
    ivc_close(out);
    ivc_close(in);
    ivc_deregister(a);
    ivc_deregister(b);
    std::printf("ok 1 - a C++ caller\n1..1\n");
    return 0;
}

int main()
{
    const std::string path = "/dev/shm/ivc-test-cxx-" + std::to_string(getpid());
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600), r;

    if (fd < 0 || ftruncate(fd, 16 << 20) < 0) {
        std::perror(path.c_str());
        return 1;
    }
    close(fd);
    r = talk(path);
    unlink(path.c_str());
    return r;
}
