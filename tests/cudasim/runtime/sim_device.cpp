/* What the runtime tells of the machine, and its errors (sim_runtime.h). */
#include "tests/cudasim/runtime/sim_device.h"

#include <stdio.h>
#include <stdlib.h>

#include <mutex>
#include <set>
#include <string>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_stream.h"

static thread_local cudaError_t last_error;
static thread_local int current_device;

/* ---- what starts when it is first needed ---- */

static struct {
    const char *name;
    std::string value;
    bool set;
} variables[] = {{"CUDA_DEVICE_MAX_CONNECTIONS", "", false}, {"CUDA_MODULE_LOADING", "", false}};

static void driver_start()
{
    static bool started;
    for (auto &variable : variables) {
        const char *value = started ? nullptr : getenv(variable.name);
        if (value == nullptr)
            continue;
        variable.value = value;
        variable.set = true;
    }
    started = true;
}

const char *cudasim_variable(const char *name)
{
    for (const auto &variable : variables)
        if (variable.set && variable.name == std::string(name))
            return variable.value.c_str();
    return nullptr;
}

static std::set<int> &contexts()
{
    static std::set<int> the_contexts;
    return the_contexts;
}

void sim_context_make()
{
    contexts().insert(current_device);
}

int cudasim_num_contexts(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    return (int)contexts().size();
}

/* ---- the machine ---- */

static cudasim_machine &machine()
{
    static cudasim_machine the_machine = [] {
        const char *devices = getenv("CUDASIM_DEVICES"), *mib = getenv("CUDASIM_MEMORY_MIB");
        size_t memory_mib = mib != NULL ? (size_t)atoll(mib) : 16 << 10;
        return cudasim_machine{
            13000, devices != NULL ? atoi(devices) : 8, 90, memory_mib << 20, nullptr, false};
    }();
    return the_machine;
}

const cudasim_machine &sim_machine()
{
    return machine();
}

void cudasim_machine_set(const cudasim_machine *other)
{
    machine() = *other;
}

cudaError_t sim_error_set(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sim_lost() != cudaSuccess ? sim_lost() : last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &row : errors)
        if (row.error == error)
            return row.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &row : errors)
        if (row.error == error)
            return row.text;
    return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = sim_machine().driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    driver_start();
    if (sim_machine().driver_version <
        CUDART_VERSION / 1000 * 1000) /* of the runtime's major version */
        return sim_error_set(cudaErrorInsufficientDriver);
    if (sim_machine().num_devices == 0)
        return sim_error_set(cudaErrorNoDevice);
    *count = sim_machine().num_devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return error;
    if (device < 0 || device >= count)
        return sim_error_set(cudaErrorInvalidDevice);
    current_device = device;
    return sim_lost();
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    (void)device_flags;
    (void)flags;
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return error;
    return device < 0 || device >= count ? sim_error_set(cudaErrorInvalidDevice) : sim_lost();
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return sim_lost();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return error;
    if (device < 0 || device >= count)
        return sim_error_set(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "%s",
             sim_machine().name != nullptr ? sim_machine().name : "simulated GPU");
    properties->uuid.bytes[0] = (char)device;
    properties->totalGlobalMem = sim_machine().memory_bytes;
    properties->major = sim_machine().capability / 10;
    properties->minor = sim_machine().capability % 10;
    properties->multiProcessorCount = 132;
    return sim_lost();
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *)
{
    *attributes = {};
    return sim_machine().strange ? sim_error_set(cudaErrorNoKernelImageForDevice) : sim_lost();
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return sim_lost();
}
