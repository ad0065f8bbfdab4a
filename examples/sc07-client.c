/* The client of the SC'07 paper's figure 5: finds the server, sends, and reads the answer.  sc07-client GROUP */
#include <ivc_sc07.h>

#include <stdio.h>
#include <unistd.h>

enum { CLIENT_ID = 1, SIZE = 6 };

int main(int argc, char **argv)
{
    ivc_ctx *ctx = ivc_register(argc > 1 ? strtoull(argv[1], NULL, 0) : 1, CLIENT_ID);
    ivc_peer *peers = NULL;
    ivc_channel channel;
    char buf[SIZE] = "hello";
    ptrdiff_t bytes;

    if (!ctx) {
        fprintf(stderr, "sc07-client: %s\n", ivc_last_error());
        return 1;
    }
    while (!(peers = ivc_get_hosts(ctx)))
        usleep(1000);
    channel = ivc_connect(ctx, peers[0]);
    if (channel.id < 0) {
        fprintf(stderr, "sc07-client: %s\n", ivc_last_error());
        return 1;
    }
    printf("client: connected to %d\n", channel.id);
    bytes = ivc_write(channel, buf, SIZE);
    printf("client: wrote %d bytes\n", (int)bytes);
    while ((bytes = ivc_read(channel, buf, SIZE)) == 0)
        ;
    printf("client: read %d bytes: %s\n", (int)bytes, bytes == SIZE ? buf : "");
    ivc_close(channel);
    ivc_deregister(ctx);
    return bytes != SIZE;
}
