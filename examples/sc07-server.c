/* The server of the SC'07 paper's figure 5: waits for a client, reads, and sends back.  sc07-server GROUP */
#include <ivc_sc07.h>

#include <stdio.h>

enum { SERVER_ID = 0, SIZE = 6 };

int main(int argc, char **argv)
{
    ivc_ctx *ctx = ivc_init(argc > 1 ? strtoull(argv[1], NULL, 0) : 1, SERVER_ID);
    ivc_channel channel;
    char buf[SIZE];
    ptrdiff_t bytes;

    if (!ctx) {
        fprintf(stderr, "sc07-server: %s\n", ivc_last_error());
        return 1;
    }
    channel = ivc_accept(ctx);
    printf("server: client %d\n", channel.id);
    while ((bytes = ivc_read(channel, buf, SIZE)) == 0)
        ;
    if (bytes == SIZE)
        bytes = ivc_write(channel, buf, SIZE);
    printf("server: %d bytes back\n", (int)bytes);
    while (ivc_read(channel, buf, SIZE) == 0)   /* until the client closes */
        ;
    ivc_close(channel);
    ivc_deregister(ctx);
    return bytes != SIZE;
}
