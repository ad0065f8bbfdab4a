/* Addresses: who an endpoint is, and by which paths it is reached; see endpoint.h. */
#include "endpoint/address.h"

#include "base/error.h"
#include "base/util.h"

#include <inttypes.h>
#include <string.h>

enum { ADDRESS_VERSION = 4 };   /* also of what an endpoint's packets mean */

static uint64_t region_hash(const struct ivc_region_info *info)
{
    uint64_t hash = ivc_hash(IVC_HASH_START, info->uuid, sizeof info->uuid);

    return ivc_hash(hash, &info->epoch, sizeof info->epoch);
}

uint64_t ivc_address_of_member(const struct ivc_region_info *info, const struct ivc_member *member)
{
    uint64_t hash = ivc_hash(region_hash(info), &member->slot, sizeof member->slot);

    return ivc_hash(hash, &member->generation, sizeof member->generation);
}

void ivc_address_make(const struct ivc_endpoint *endpoint, struct ivc_address_fields *ret_fields)
{
    struct ivc_address_fields fields = {
        .version = ADDRESS_VERSION,
        .slot = IVC_ADDRESS_NO_SLOT,
        .id = endpoint->id,
    };

    if (endpoint->home.region) {
        const struct ivc_member *self = ivc_region_self(endpoint->home.region);

        fields.slot = (uint16_t)ivc_region_place(endpoint->home.region);
        fields.generation = self->generation;
        fields.region = region_hash(&endpoint->home.info);
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
        return ivc_error_set(IVC_E_UNREACHABLE, "address of %u bytes: made by another version of "
                             "ivc", address->len);
    memcpy(&fields, address->bytes, sizeof fields);
    if (fields.version != ADDRESS_VERSION)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of version %u: made by another version of "
                             "ivc", fields.version);
    if (fields.id == 0 || !ivc_network_name_is_valid(&fields.network))
        return ivc_error_set(IVC_E_UNREACHABLE, "address of %016" PRIx64 " is damaged", fields.id);
    *ret_fields = fields;
    return 0;
}

uint64_t ivc_address_id(const struct ivc_address *address)
{
    struct ivc_address_fields fields = { 0 };

    return ivc_address_read(address, &fields) == 0 ? fields.id : 0;
}

uint64_t ivc_address_region(const struct ivc_region_info *info)
{
    return region_hash(info);
}

uint64_t ivc_address_told_region(const struct ivc_address_fields *fields)
{
    return fields->slot == IVC_ADDRESS_NO_SLOT ? 0 : fields->region;
}

bool ivc_address_is_co_resident(const struct ivc_endpoint *endpoint,
                                const struct ivc_address_fields *fields)
{
    return endpoint->home.region && fields->slot != IVC_ADDRESS_NO_SLOT
           && fields->region == region_hash(&endpoint->home.info);
}

void ivc_address_describe(const struct ivc_address *address, char *ret_text, size_t size)
{
    struct ivc_address_fields fields = { 0 };
    char region[80] = "no region";

    if (ivc_address_read(address, &fields) != 0) {
        snprintf(ret_text, size, "%s", ivc_error_text());
        return;
    }
    if (fields.slot != IVC_ADDRESS_NO_SLOT)
        snprintf(region, sizeof region, "region %016" PRIx64 " slot %u", fields.region,
                 fields.slot);
    snprintf(ret_text, size, "%016" PRIx64 ", %s, %s", fields.id, region,
             fields.network.provider ? "network" : "no network");
}
