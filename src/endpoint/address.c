/* Addresses: who an endpoint is, and by which paths it is reached; see endpoint.h. */
#include "endpoint/address.h"

#include "base/error.h"
#include "base/util.h"

#include <inttypes.h>
#include <string.h>

enum { ADDRESS_VERSION = 2 };

void ivc_address_make(const struct ivc_endpoint *endpoint, struct ivc_address_fields *ret_fields)
{
    struct ivc_address_fields fields = {
        .version = ADDRESS_VERSION,
        .slot = UINT32_MAX,
        .client_id = endpoint->client_id,
        .id = endpoint->id,
    };

    if (endpoint->region) {
        const struct ivc_member *self = ivc_region_self(endpoint->region);

        fields.slot = self->slot;
        fields.generation = self->generation;
        fields.epoch = endpoint->info.epoch;
        memcpy(fields.uuid, endpoint->info.uuid, sizeof fields.uuid);
    }
    if (endpoint->network)
        ivc_network_name(endpoint->network, &fields.network);
    *ret_fields = fields;
}

void ivc_endpoint_address(const struct ivc_endpoint *endpoint, struct ivc_address *ret_address)
{
    struct ivc_address_fields fields;

    ivc_address_make(endpoint, &fields);
    ret_address->len = sizeof fields;
    memcpy(ret_address->bytes, &fields, sizeof fields);
}

int ivc_address_read(const struct ivc_address *address, struct ivc_address_fields *ret_fields)
{
    struct ivc_address_fields fields;

    if (address->len != sizeof fields)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of %u bytes: made by another version of ivc",
                             address->len);
    memcpy(&fields, address->bytes, sizeof fields);
    if (fields.version != ADDRESS_VERSION)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of version %u: made by another version of "
                             "ivc", fields.version);
    if (fields.id == 0 || fields.network.len > sizeof fields.network.bytes)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of client %u is damaged", fields.client_id);
    *ret_fields = fields;
    return 0;
}

uint64_t ivc_address_id(const struct ivc_address *address)
{
    struct ivc_address_fields fields = { 0 };

    return ivc_address_read(address, &fields) == 0 ? fields.id : 0;
}

bool ivc_address_is_co_resident(const struct ivc_endpoint *endpoint,
                                const struct ivc_address_fields *fields)
{
    return endpoint->region && fields->slot != UINT32_MAX && fields->epoch == endpoint->info.epoch
           && strncmp(fields->uuid, endpoint->info.uuid, sizeof fields->uuid) == 0;
}

void ivc_address_describe(const struct ivc_address *address, char *ret_text, size_t size)
{
    struct ivc_address_fields fields = { 0 };
    char region[80] = "no region";

    if (ivc_address_read(address, &fields) != 0) {
        snprintf(ret_text, size, "%s", ivc_error_text());
        return;
    }
    if (fields.slot != UINT32_MAX)
        snprintf(region, sizeof region, "region %.36s slot %u", fields.uuid, fields.slot);
    snprintf(ret_text, size, "client %u (%016" PRIx64 "), %s, %s", fields.client_id, fields.id, region,
             fields.network.provider ? "network" : "no network");
}
