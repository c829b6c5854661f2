/* A step's decision, at once. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/decide.h"

tr_status tr_cpu_decide(tr_device *device, const tr_decision *args)
{
    int64_t sums[TR_STEP_SUMS];
    (void)device;
    for (int i = 0; i < TR_STEP_SUMS; i++)
        sums[i] = tr_decide_limb(args, i);
    tr_decide(args, sums);
    return TR_OK;
}
