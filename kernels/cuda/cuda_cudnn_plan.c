/* From a graph of cuDNN's operations to a plan that runs it (cuda_cudnn_graph.h). */
#include "kernels/cuda/cuda_cudnn_graph.h"

enum { MOST_CANDIDATES = 16 };

static tr_status dnn_check(const tr_cudnn *dnn, cudnnStatus_t status, const char *what)
{
    char words[512] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return TR_OK;
    dnn->GetLastErrorString(words, sizeof words);
    return tr_fail(TR_ERR_INTERNAL, "cuDNN refused %s: %s%s%s", what, dnn->GetErrorString(status),
                   words[0] != '\0' ? ": " : "", words);
}

#define DNN_TRY(dnn, what, name, ...) TR_TRY(dnn_check(dnn, (dnn)->name(__VA_ARGS__), what))

/* A descriptor that lives as long as the graph. */
static tr_status create(tr_cudnn_graph *graph, cudnnBackendDescriptorType_t type, const char *what,
                        cudnnBackendDescriptor_t *descriptor)
{
    TR_ASSERT(graph->num_descriptors < TR_CUDNN_MOST_DESCRIPTORS);
    DNN_TRY(graph->dnn, what, BackendCreateDescriptor, type, descriptor);
    graph->descriptors[graph->num_descriptors++] = *descriptor;
    return TR_OK;
}

static tr_status set(const tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void *values, const char *what)
{
    DNN_TRY(graph->dnn, what, BackendSetAttribute, descriptor, name, type, count, values);
    return TR_OK;
}

static tr_status finalize(const tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                          const char *what)
{
    DNN_TRY(graph->dnn, what, BackendFinalize, descriptor);
    return TR_OK;
}

static tr_status operations_join(tr_cudnn_graph *graph, cudnnBackendDescriptor_t *joined)
{
    static const char what[] = "the graph";
    TR_TRY(create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what, joined));
    TR_TRY(set(graph, *joined, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
               &graph->handle, what));
    TR_TRY(set(graph, *joined, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               graph->num_operations, graph->operations, what));
    return finalize(graph, *joined, what);
}

/* ---- engines ---- */

/* Whether the engine of a configuration promises the same bits for the same inputs. */
static tr_status is_repeatable(tr_cudnn_graph *graph, cudnnBackendDescriptor_t config,
                               bool *repeatable)
{
    static const char what[] = "an engine's notes";
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t count = 0;
    TR_TRY(create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what, &engine));
    DNN_TRY(graph->dnn, what, BackendGetAttribute, config, CUDNN_ATTR_ENGINECFG_ENGINE,
            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    DNN_TRY(graph->dnn, what, BackendGetAttribute, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
            CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes);
    *repeatable = true;
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            *repeatable = false;
    return TR_OK;
}

/* What the heuristics propose, best first. */
static tr_status candidates_ask(tr_cudnn_graph *graph, cudnnBackendDescriptor_t joined,
                                cudnnBackendHeurMode_t mode,
                                cudnnBackendDescriptor_t configs[MOST_CANDIDATES], int64_t *count)
{
    static const char what[] = "the question for engines";
    cudnnBackendDescriptor_t heuristics;
    TR_TRY(create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what, &heuristics));
    TR_TRY(set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &joined, what));
    TR_TRY(
        set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what));
    TR_TRY(finalize(graph, heuristics, what));
    for (int i = 0; i < MOST_CANDIDATES; i++)
        TR_TRY(create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what, &configs[i]));
    DNN_TRY(graph->dnn, what, BackendGetAttribute, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
            CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CANDIDATES, count, configs);
    *count = *count < MOST_CANDIDATES ? *count : MOST_CANDIDATES;
    return TR_OK;
}

static tr_status chosen_config(tr_cudnn_graph *graph, cudnnBackendDescriptor_t joined,
                               const tr_cudnn_choice *choice, cudnnBackendDescriptor_t *config)
{
    static const char what[] = "the engine of the choice";
    cudnnBackendDescriptor_t engine, knobs[TR_CUDNN_MOST_KNOBS];
    TR_TRY(create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what, &engine));
    TR_TRY(set(graph, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &joined, what));
    TR_TRY(set(graph, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &choice->engine,
               what));
    TR_TRY(finalize(graph, engine, what));
    for (int i = 0; i < choice->num_knobs; i++) {
        TR_TRY(create(graph, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what, &knobs[i]));
        TR_TRY(set(graph, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                   &choice->knobs[i], what));
        TR_TRY(set(graph, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                   &choice->values[i], what));
        TR_TRY(finalize(graph, knobs[i], what));
    }
    TR_TRY(create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what, config));
    TR_TRY(set(graph, *config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &engine, what));
    TR_TRY(set(graph, *config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               choice->num_knobs, knobs, what));
    return finalize(graph, *config, what);
}

/* ---- plans ---- */

static tr_status plan_build(tr_cudnn_plan *plan, cudnnBackendDescriptor_t config)
{
    static const char what[] = "the plan";
    tr_cudnn_graph *graph = &plan->graph;
    cudnnBackendDescriptor_t built;
    int64_t bytes = 0, count = 0;
    TR_TRY(create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what, &built));
    TR_TRY(set(graph, built, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &graph->handle,
               what));
    TR_TRY(set(graph, built, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               1, &config, what));
    TR_TRY(finalize(graph, built, what));
    DNN_TRY(graph->dnn, what, BackendGetAttribute, built, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
            CUDNN_TYPE_INT64, 1, &count, &bytes);
    plan->descriptor = built;
    plan->workspace_bytes = (size_t)bytes;
    return TR_OK;
}

/* The first of the mode's candidates that repeats itself and can be built; *built = false when there is none. */
static tr_status plan_search(tr_cudnn_plan *plan, cudnnBackendDescriptor_t joined,
                             cudnnBackendHeurMode_t mode, bool *built)
{
    cudnnBackendDescriptor_t configs[MOST_CANDIDATES];
    int64_t count = 0;
    TR_TRY(candidates_ask(&plan->graph, joined, mode, configs, &count));
    for (int64_t i = 0; i < count && !*built; i++) {
        bool repeatable;
        TR_TRY(is_repeatable(&plan->graph, configs[i], &repeatable));
        *built = repeatable && plan_build(plan, configs[i]) == TR_OK;
    }
    return TR_OK;
}

static tr_status plan_choose(tr_cudnn_plan *plan, const tr_cudnn_choice *choice)
{
    tr_cudnn_graph *graph = &plan->graph;
    cudnnBackendDescriptor_t joined, config;
    bool built = false;
    TR_TRY(operations_join(graph, &joined));
    if (choice != NULL) {
        TR_TRY(chosen_config(graph, joined, choice, &config));
        return plan_build(plan, config);
    }
    TR_TRY(plan_search(plan, joined, CUDNN_HEUR_MODE_A, &built));
    if (!built)
        return tr_fail(TR_ERR_INTERNAL, "cuDNN has no engine for the graph that promises the same "
                                        "bits twice");
    return TR_OK;
}

tr_status tr_cudnn_plan_create(tr_cudnn_plan *plan, const tr_cudnn_choice *choice)
{
    tr_status status = plan->graph.status;
    if (status == TR_OK)
        status = plan_choose(plan, choice);
    if (status != TR_OK)
        tr_cudnn_plan_clear(plan);
    return status;
}

void tr_cudnn_plan_clear(tr_cudnn_plan *plan)
{
    tr_cudnn_graph_clear(&plan->graph);
    *plan = (tr_cudnn_plan){0};
}

static tr_status pack_fill(const tr_cudnn_graph *graph, cudnnBackendDescriptor_t pack, int count,
                           const int64_t *ids, void *const *pointers, void *workspace)
{
    static const char what[] = "the plan's operands";
    TR_TRY(
        set(graph, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids, what));
    TR_TRY(set(graph, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
               pointers, what));
    TR_TRY(set(graph, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace,
               what));
    return finalize(graph, pack, what);
}

tr_status tr_cudnn_plan_run(const tr_cudnn_plan *plan, cudaStream_t stream, int count,
                            const int64_t *ids, void *const *pointers, void *workspace)
{
    const tr_cudnn_graph *graph = &plan->graph;
    cudnnBackendDescriptor_t pack;
    DNN_TRY(graph->dnn, "the stream", SetStream, graph->handle, stream);
    DNN_TRY(graph->dnn, "the plan's operands", BackendCreateDescriptor,
            CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    tr_status status = pack_fill(graph, pack, count, ids, pointers, workspace);
    if (status == TR_OK)
        status =
            dnn_check(graph->dnn, graph->dnn->BackendExecute(graph->handle, plan->descriptor, pack),
                      "to run the plan");
    graph->dnn->BackendDestroyDescriptor(pack);
    return status;
}
