#include "kernels/copy_list.h"

tr_status tr_copy_list_flush(tr_copy_list *list)
{
    int count = list->count;
    list->count = 0;
    return count > 0 ? list->device->ops->copy_many(list->device, count, list->copies) : TR_OK;
}

tr_status tr_copy_list_add(tr_copy_list *list, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return TR_OK;
    if (list->count == TR_COPY_LIST_ROOM)
        TR_TRY(tr_copy_list_flush(list));
    list->copies[list->count++] = (tr_copy){dst, src, bytes};
    return TR_OK;
}
