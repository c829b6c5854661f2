/* What the token readers of the formats share: the open file and its maps. Read by io/token_*.c
 * only. */
#ifndef TR_IO_TOKEN_FILE_INT_H
#define TR_IO_TOKEN_FILE_INT_H

#include "io/token_file.h"

/* A whole file, mapped read-only. `bytes` is NULL when the file is empty. */
typedef struct tr_token_map {
    char *path; /* owned */
    const unsigned char *bytes;
    uint64_t size;
} tr_token_map;

/* How one token is stored. */
typedef enum tr_token_width {
    TR_TOKEN_U8,
    TR_TOKEN_U16,
    TR_TOKEN_I16,
    TR_TOKEN_I32,
    TR_TOKEN_U32,
    TR_TOKEN_I64
} tr_token_width;

/* Running token counts are kept for every TR_TOKEN_STRIDE-th sequence only: 1/32 of a byte per
 * sequence. */
enum { TR_TOKEN_STRIDE = 256 };

struct tr_token_file {
    tr_token_info info;
    tr_token_width width;
    tr_token_map data;
    tr_token_map index;   /* Megatron only */
    uint64_t data_offset; /* llm.c: bytes in front of the first token */
    /* Megatron: tokens in front of sequence i * TR_TOKEN_STRIDE; num_sequences / stride + 1. */
    uint64_t *stride_tokens;
    /* Arrays inside the index map, unaligned: */
    const unsigned char *lengths;   /* i32 [num_sequences] */
    const unsigned char *pointers;  /* i64 [num_sequences] */
    const unsigned char *documents; /* i64 [num_documents + 1] */
};

/* Sets name, item_size and width of the info. */
void tr_token_file_set_width(tr_token_file *file, tr_token_width width);

/* Maps `path`; TR_ERR_DATA when it is missing or no regular file. Takes a copy of `path`. */
tr_status tr_token_map_open(tr_token_map *map, const char *path);
void tr_token_map_close(tr_token_map *map);

/* Little-endian loads from any address. */
uint16_t tr_load_u16(const unsigned char *at);
uint32_t tr_load_u32(const unsigned char *at);
uint64_t tr_load_u64(const unsigned char *at);

/* Fill `file` (zeroed by the caller, who closes it also on failure). */
tr_status tr_token_megatron_open(tr_token_file *file, const char *bin_path, const char *idx_path);
tr_status tr_token_llmc_open(tr_token_file *file, const char *path);

/* Whether the first bytes of a file are an llm.c header, of any kind. */
bool tr_token_llmc_recognise(const unsigned char *bytes, uint64_t size);
/* Whether the first bytes of a file are those of a Megatron .idx. */
bool tr_token_megatron_recognise(const unsigned char *bytes, uint64_t size);

#endif
