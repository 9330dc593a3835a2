/*
 * KV pages: the K and V data of a position range of one sequence, as native bytes, out of and into the resident
 * tensors of a llama_context.
 *
 * Rules of the whole interface
 *  - Every function that can fail returns an enum llama_kv_page_status. On failure llama_kv_page_last_message() says
 *    what was wrong, where, and what to do. No C++ exception crosses the interface.
 *  - A failed import leaves the context as it was: its reserved cells are free again and hold zeros, every other
 *    sequence is untouched.
 *  - Structs that grow carry their size in the first field; the caller sets it to sizeof(struct ...). A size this
 *    library does not know is refused, never guessed.
 *  - The library keeps no pointer to the caller's memory after a call returns, except for `ctx` in a reservation.
 *  - A llama_context is not thread-safe; neither are these functions on the same context. The message is thread-local.
 *  - A ggml type of 0 is GGML_TYPE_F32. No field uses 0 for "unset".
 *
 * This header includes only fixed-width integer types, so that a foreign function interface can read it as it is.
 */
#ifndef LLAMA_KV_PAGE_H
#define LLAMA_KV_PAGE_H

#include <stdint.h>

#if defined(_WIN32) && !defined(__MINGW32__)
#    ifdef LLAMA_BUILD
#        define LLAMA_KV_PAGE_API __declspec(dllexport)
#    else
#        define LLAMA_KV_PAGE_API __declspec(dllimport)
#    endif
#else
#    define LLAMA_KV_PAGE_API __attribute__((visibility("default")))
#endif

#define LLAMA_KV_PAGE_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

struct llama_context;

/* Why a call failed. Numbers are part of the ABI: they are never reused. */
enum llama_kv_page_status {
    LLAMA_KV_PAGE_OK = 0,

    /* the call is wrong */
    LLAMA_KV_PAGE_ERR_ARGUMENT    = 1, /* NULL pointer, negative or overflowing number, unknown flag */
    LLAMA_KV_PAGE_ERR_STRUCT_SIZE = 2, /* a sized struct of another ABI */
    LLAMA_KV_PAGE_ERR_BUFFER_SIZE = 3, /* the buffer is not as large as the page */
    LLAMA_KV_PAGE_ERR_SEQ_ID      = 4, /* no such sequence id in this context */

    /* the sequence or the cache is not in the state the call needs */
    LLAMA_KV_PAGE_ERR_MISSING    = 10, /* a position of the range is not in the sequence, or is there twice */
    LLAMA_KV_PAGE_ERR_OCCUPIED   = 11, /* the sequence already holds positions of the range */
    LLAMA_KV_PAGE_ERR_GAP        = 12, /* the range does not begin where the sequence ends */
    LLAMA_KV_PAGE_ERR_NO_CELLS   = 13, /* not enough free cells */
    LLAMA_KV_PAGE_ERR_BUSY       = 14, /* another reservation is open in this context */
    LLAMA_KV_PAGE_ERR_STALE      = 15, /* the reservation was overtaken by another operation on the memory */
    LLAMA_KV_PAGE_ERR_INCOMPLETE = 16, /* commit before every component was written */
    LLAMA_KV_PAGE_ERR_CANCELLED  = 17, /* a function of the caller asked to stop */

    /* the page does not fit the live layout */
    LLAMA_KV_PAGE_ERR_COMPONENTS = 20, /* other layers, or K or V missing */
    LLAMA_KV_PAGE_ERR_TYPE       = 21, /* another ggml type */
    LLAMA_KV_PAGE_ERR_ROTATION   = 22, /* rotated differently, or not at all */
    LLAMA_KV_PAGE_ERR_LAYOUT     = 23, /* rows against transposed */
    LLAMA_KV_PAGE_ERR_WIDTH      = 24, /* other number of channels, or other bytes a row */
    LLAMA_KV_PAGE_ERR_DIGEST     = 25, /* payload bytes do not match their digest */

    /* archives */
    LLAMA_KV_PAGE_ERR_ARCHIVE        = 30, /* damaged, cut short, or made to do harm */
    LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT = 31, /* of a format, version or type this library does not read or write */
    LLAMA_KV_PAGE_ERR_NON_FINITE     = 32, /* the cache holds a NaN or an infinity, which only lossless coding keeps */
    LLAMA_KV_PAGE_ERR_WINDOW         = 33, /* the archive lacks positions that a sliding window needs */

    /* this context cannot be paged, whatever the page */
    LLAMA_KV_PAGE_REFUSED_NO_MEMORY   = 40, /* the context has no memory (an encoder-only model) */
    LLAMA_KV_PAGE_REFUSED_ENCODER     = 41, /* encoder-decoder: the encoder's output would be missing */
    LLAMA_KV_PAGE_REFUSED_ISWA        = 42, /* interleaved sliding-window cache */
    LLAMA_KV_PAGE_REFUSED_RECURRENT   = 43, /* recurrent state */
    LLAMA_KV_PAGE_REFUSED_HYBRID      = 44, /* attention and recurrent parts */
    LLAMA_KV_PAGE_REFUSED_HYBRID_ISWA = 45, /* sliding-window attention and recurrent parts */
    LLAMA_KV_PAGE_REFUSED_HYBRID_IDX  = 46, /* hybrid with an indexer cache */
    LLAMA_KV_PAGE_REFUSED_DSA         = 47, /* sparse attention with an indexer cache */
    LLAMA_KV_PAGE_REFUSED_DSA_ISWA    = 48, /* the same over a sliding window */
    LLAMA_KV_PAGE_REFUSED_MSA         = 49, /* multi-scale attention caches */
    LLAMA_KV_PAGE_REFUSED_DSV4        = 50, /* DeepSeek V4 compressed caches */
    LLAMA_KV_PAGE_REFUSED_UNKNOWN     = 51, /* a memory class this library does not know */
    LLAMA_KV_PAGE_REFUSED_SHARED      = 52, /* the cache shares cells or layers with another context */
    LLAMA_KV_PAGE_REFUSED_WINDOW      = 53, /* a dense cache with a sliding window: its old cells get reused */
    LLAMA_KV_PAGE_REFUSED_CELL_EXT    = 54, /* cells carry more than a position (M-RoPE, n-gram embeddings) */
    LLAMA_KV_PAGE_REFUSED_BACKEND     = 55, /* a layer's tensors are not in host memory */
    LLAMA_KV_PAGE_REFUSED_CODEC       = 56, /* a layer's backend has no codec for its type */

    /* the system */
    LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY = 70,
    LLAMA_KV_PAGE_ERR_INTERNAL      = 71,
    LLAMA_KV_PAGE_ERR_WRITE         = 72 /* a file could not be written; the stats' system_error says why */
};

enum llama_kv_page_kind {
    LLAMA_KV_PAGE_KIND_K = 1,
    LLAMA_KV_PAGE_KIND_V = 2,

    /* in archives only */
    LLAMA_KV_PAGE_KIND_INDEXER_K = 3, /* keys of an indexer */
    LLAMA_KV_PAGE_KIND_STATE_R   = 4, /* recurrent: convolution or token-shift state */
    LLAMA_KV_PAGE_KIND_STATE_S   = 5, /* recurrent: state of the recurrence */
    LLAMA_KV_PAGE_KIND_STATE_P   = 6  /* recurrent: convolution state of the n-gram embeddings */
};

enum llama_kv_page_flag {
    /* export: fill in each component's xxh3; import and write: compare it */
    LLAMA_KV_PAGE_FLAG_DIGEST = 1
};

/* What this context can do, before any page is read. */
struct llama_kv_page_caps {
    uint32_t struct_size;     /* IN  sizeof(struct llama_kv_page_caps) */
    uint32_t abi_version;     /* OUT LLAMA_KV_PAGE_ABI_VERSION of the library */
    int32_t  status;          /* OUT LLAMA_KV_PAGE_OK, or the REFUSED status every other call would return */
    uint32_t n_seq_max;       /* OUT sequence ids are 0 .. n_seq_max - 1 */
    uint32_t n_streams;       /* OUT 1: sequences share one pool of cells; else one pool each */
    uint32_t n_cells;         /* OUT cells in one pool */
    uint32_t n_components;    /* OUT components of a page */
    uint32_t v_transposed;    /* OUT 1: V is stored channel by channel (flash attention off) */
    uint64_t bytes_per_token; /* OUT payload of one token, without alignment */
};

/* One tensor's share of a page. */
struct llama_kv_page_component {
    int32_t  layer;      /* model layer */
    int32_t  kind;       /* enum llama_kv_page_kind */
    int32_t  type;       /* enum ggml_type of this component */
    uint32_t transposed; /* 0: n_tokens rows of row_bytes; 1: n_channels rows of n_tokens elements */
    uint32_t n_rot;      /* size of the Hadamard rotation of the values, 0 for none */
    uint32_t n_tokens;
    uint32_t n_channels; /* values of one token */
    uint32_t row_bytes;  /* bytes of one token */
    uint64_t offset;     /* first byte in the payload, a multiple of 64; the bytes between components are zero */
    uint64_t n_bytes;    /* n_tokens * row_bytes */
    uint64_t xxh3;       /* XXH3-64 of the component's bytes, seed 0; export writes 0, and import does not read it,
                            without FLAG_DIGEST */
};

/* What a page of a range holds, and what its K and V values depend on besides the weights and the tokens. */
struct llama_kv_page_info {
    uint32_t struct_size;           /* IN  sizeof(struct llama_kv_page_info) */
    uint32_t component_struct_size; /* IN  sizeof(struct llama_kv_page_component) */
    uint32_t n_components;          /* OUT */
    uint32_t n_tokens;              /* OUT */
    int32_t  pos_begin;             /* OUT first position */
    uint32_t stream;                /* OUT the pool of cells that serves the sequence */
    uint64_t payload_bytes;         /* OUT size of the payload, alignment included */
    int32_t  rope_type;             /* OUT enum llama_rope_type */
    uint32_t n_ctx_orig_yarn;       /* OUT the following are the values in effect, defaults resolved */
    float    rope_freq_base;        /* OUT */
    float    rope_freq_scale;       /* OUT */
    float    yarn_ext_factor;       /* OUT */
    float    yarn_attn_factor;      /* OUT */
    float    yarn_beta_fast;        /* OUT */
    float    yarn_beta_slow;        /* OUT */
};

/* How to do it. A NULL pointer to it means all zeros. */
struct llama_kv_page_options {
    uint32_t struct_size; /* IN  sizeof(struct llama_kv_page_options) */
    uint32_t flags;       /* IN  enum llama_kv_page_flag, or-ed */
    uint32_t n_threads;   /* IN  threads that copy and digest; 0: as many as the context decodes with */
    uint32_t reserved;    /* IN  0 */
};

/* What was done, and how long it took. */
struct llama_kv_page_stats {
    uint32_t struct_size;     /* IN  sizeof(struct llama_kv_page_stats) */
    uint32_t n_cell_runs;     /* OUT runs of adjacent cells; 1 if the page is not fragmented */
    uint32_t n_threads;       /* OUT threads that copied */
    uint32_t reserved;        /* OUT 0 */
    uint64_t payload_bytes;   /* OUT bytes copied */
    uint64_t transient_bytes; /* OUT memory allocated for the call besides the caller's buffers */
    double   drain_ms;        /* OUT waiting for compute, applying pending shifts and copies */
    double   reserve_ms;      /* OUT import: comparing layouts, finding cells */
    double   copy_ms;         /* OUT copying, digests included */
    double   commit_ms;       /* OUT import: making the cells part of the sequence */
};

/* An import in progress. Decode and state restores of its context are refused until it is closed. */
struct llama_kv_page_reservation;

/* The ABI version the library was built with; compare it with LLAMA_KV_PAGE_ABI_VERSION. */
LLAMA_KV_PAGE_API uint32_t llama_kv_page_abi_version(void);

/* SHA-256 digest of the patch stack, 64 hexadecimal digits. Static string, never NULL. */
LLAMA_KV_PAGE_API const char * llama_kv_page_patch_digest(void);

/* The upstream commit the stack was applied to, 40 hexadecimal digits. Static string, never NULL. */
LLAMA_KV_PAGE_API const char * llama_kv_page_llama_commit(void);

/* The name of a status without its prefix, for example "ERR_TYPE". Static string, never NULL. */
LLAMA_KV_PAGE_API const char * llama_kv_page_status_name(int32_t status);

/* What went wrong in the last failed call on this thread. Never NULL; valid until the next failed call on this thread.
 */
LLAMA_KV_PAGE_API const char * llama_kv_page_last_message(void);

/* Capability query. Succeeds for contexts that cannot be paged too: caps->status then says why.
 *   ctx   IN     borrowed
 *   caps  INOUT  caller's struct */
LLAMA_KV_PAGE_API int32_t llama_kv_page_get_caps(struct llama_context * ctx, struct llama_kv_page_caps * caps);

/* List the components of a page of positions [p0, p1) of a sequence. The positions need not be there: the answer is
 * the layout an export would have, and an import must have.
 *   ctx               IN     borrowed
 *   seq_id, p0, p1    IN     0 <= p0 < p1
 *   info              INOUT  caller's struct
 *   components        OUT    caller's array, or NULL to ask for info alone
 *   n_components_max  IN     length of the array; ERR_BUFFER_SIZE if it is too short */
LLAMA_KV_PAGE_API int32_t llama_kv_page_describe(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1,
                                                 struct llama_kv_page_info *      info,
                                                 struct llama_kv_page_component * components,
                                                 uint32_t                         n_components_max);

/* What the K and V values of this context depend on besides the weights and the tokens, whatever its memory: the fields
 * of info from rope_type on. The others become 0.
 *   ctx               IN     borrowed
 *   info              INOUT  caller's struct */
LLAMA_KV_PAGE_API int32_t llama_kv_page_get_rope(struct llama_context * ctx, struct llama_kv_page_info * info);

/* The payload size of a page of positions [p0, p1): what llama_kv_page_export() writes.
 *   payload_bytes     OUT    caller's variable */
LLAMA_KV_PAGE_API int32_t llama_kv_page_size(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1,
                                             uint64_t * payload_bytes);

/* Copy the native bytes of positions [p0, p1) out of the cache.
 *   dst, dst_bytes    OUT    caller's buffer, exactly llama_kv_page_size() bytes
 *   components        OUT    caller's array of at least info.n_components, or NULL (then FLAG_DIGEST is refused)
 *   n_components_max  IN     length of the array
 *   options           IN     or NULL
 *   stats             INOUT  or NULL */
LLAMA_KV_PAGE_API int32_t llama_kv_page_export(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1,
                                               void * dst, uint64_t dst_bytes,
                                               struct llama_kv_page_component * components, uint32_t n_components_max,
                                               const struct llama_kv_page_options * options,
                                               struct llama_kv_page_stats *         stats);

/* Append a page to a sequence, all or nothing: reserve, write every component, commit.
 *   p0                IN     first position of the page; must be the one after the sequence's last
 *   components        IN     as exported, from describe or with the same content
 *   src, src_bytes    IN     the payload; not kept
 *   options           IN     or NULL
 *   stats             INOUT  or NULL */
LLAMA_KV_PAGE_API int32_t llama_kv_page_import(struct llama_context * ctx, int32_t seq_id, int32_t p0,
                                               const struct llama_kv_page_component * components, uint32_t n_components,
                                               const void * src, uint64_t src_bytes,
                                               const struct llama_kv_page_options * options,
                                               struct llama_kv_page_stats *         stats);

/* The same in steps, for a caller that has the components one by one.
 * Compare the layouts and reserve cells. On success the caller owns *reservation and must give it to
 * llama_kv_page_close(). Closing must come before the context is freed.
 *   reservation       OUT    NULL on failure */
LLAMA_KV_PAGE_API int32_t llama_kv_page_reserve(struct llama_context * ctx, int32_t seq_id, int32_t p0,
                                                const struct llama_kv_page_component * components,
                                                uint32_t n_components, struct llama_kv_page_reservation ** reservation);

/* Write one component to its reserved cells. Components may come in any order; a component may be written again.
 *   reservation       IN     borrowed
 *   i_component       IN     index into the array given to llama_kv_page_reserve()
 *   src, src_bytes    IN     exactly components[i_component].n_bytes; not kept */
LLAMA_KV_PAGE_API int32_t llama_kv_page_write(struct llama_kv_page_reservation * reservation, uint32_t i_component,
                                              const void * src, uint64_t src_bytes,
                                              const struct llama_kv_page_options * options);

/* Make the cells part of the sequence. After a failure the reservation can only be closed.
 *   reservation       IN     borrowed, still to be closed */
LLAMA_KV_PAGE_API int32_t llama_kv_page_commit(struct llama_kv_page_reservation * reservation);

/* Free a reservation; roll it back if it was not committed.
 *   reservation       IN     ownership passes to the library; NULL is allowed */
LLAMA_KV_PAGE_API void llama_kv_page_close(struct llama_kv_page_reservation * reservation);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_KV_PAGE_H */
