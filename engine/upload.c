#include "engine/upload.h"

#include <string.h>

#include "parallel/world.h"

/* Of `count` microbatches: where labels and samples begin, and the end. */
static size_t labels_at(const tr_upload *upload, int count)
{
    return (size_t)(count * upload->R) * sizeof(int32_t);
}

static size_t samples_at(const tr_upload *upload, int count)
{
    return 2 * labels_at(upload, count);
}

static size_t bytes_of(const tr_upload *upload, int count)
{
    return samples_at(upload, count) + (size_t)(count * upload->B) * sizeof(uint64_t);
}

void tr_upload_init(tr_upload *upload, const tr_model *model, int num_microbatches,
                    tr_arena *device, tr_arena *host)
{
    *upload = (tr_upload){.device = model->device,
                          .num_microbatches = num_microbatches,
                          .R = model->R,
                          .B = model->B};
    if (model->device->unified)
        return;
    upload->memory = tr_arena_alloc(device, bytes_of(upload, num_microbatches));
    upload->pinned = tr_arena_alloc(host, bytes_of(upload, num_microbatches));
}

tr_status tr_upload_connect(tr_upload *upload)
{
    if (upload->pinned == NULL)
        return TR_OK;
    return upload->device->event_create(upload->device, &upload->copied);
}

void tr_upload_clear(tr_upload *upload)
{
    if (upload->copied != NULL)
        upload->device->event_destroy(upload->device, upload->copied);
    *upload = (tr_upload){0};
}

static tr_status send(tr_upload *upload, const int32_t *tokens, const int32_t *labels,
                      const uint64_t *samples, int count)
{
    tr_device *device = upload->device;
    size_t labels_begin = labels_at(upload, count), samples_begin = samples_at(upload, count);
    TR_TRY(upload->world != NULL ? tr_world_wait_device(upload->world, upload->copied)
                                 : device->event_synchronize(device, upload->copied));
    memcpy(upload->pinned, tokens, labels_begin);
    memcpy(upload->pinned + labels_begin, labels, labels_begin);
    memcpy(upload->pinned + samples_begin, samples, bytes_of(upload, count) - samples_begin);
    TR_TRY(device->copy(device, TR_STREAM_COMPUTE, upload->memory, upload->pinned,
                        bytes_of(upload, count)));
    return device->event_record(device, upload->copied, TR_STREAM_COMPUTE);
}

tr_status tr_upload_make(tr_upload *upload, const int32_t *tokens, const int32_t *labels,
                         const uint64_t *samples, int count, tr_microbatch *microbatches)
{
    TR_ASSERT(count <= upload->num_microbatches);
    if (upload->pinned != NULL) {
        TR_TRY(send(upload, tokens, labels, samples, count));
        tokens = (const int32_t *)(const void *)upload->memory;
        labels = (const int32_t *)(const void *)(upload->memory + labels_at(upload, count));
        samples = (const uint64_t *)(const void *)(upload->memory + samples_at(upload, count));
    }
    for (int m = 0; m < count; m++)
        microbatches[m] = (tr_microbatch){.tokens = tokens + m * upload->R,
                                          .labels = labels + m * upload->R,
                                          .samples = samples + m * upload->B};
    return TR_OK;
}
