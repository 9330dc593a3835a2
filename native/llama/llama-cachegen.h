/*
 * CacheGen archives of KV caches, decoded straight into the resident tensors of a llama_context and encoded from them.
 *
 * An import is a transaction: the archive is validated against the live layout, every layer's backend is asked, cells
 * are reserved, blocks are decoded into their rows, and only then the cells become part of the sequence. A failure
 * anywhere leaves the context as it was. A layer whose backend has no codec for its type is refused: nothing goes by
 * way of host memory unless LLAMA_CACHEGEN_HOST_STAGED asks for it.
 *
 * The rules of llama-kv-page.h hold here too: statuses are enum llama_kv_page_status, the message is
 * llama_kv_page_last_message().
 */
#ifndef LLAMA_CACHEGEN_H
#define LLAMA_CACHEGEN_H

#include "llama-kv-page.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

enum llama_cachegen_format { LLAMA_CACHEGEN_FORMAT_LCG3 = 3 };

/* What can be done with one component, before any archive is read. */
struct llama_cachegen_component_caps {
    int32_t  layer;
    int32_t  kind;        /* enum llama_kv_page_kind */
    int32_t  type;        /* enum ggml_type */
    uint32_t transposed;  /* 1: stored channel by channel */
    uint32_t can_import;  /* 1: its backend decodes into it */
    uint32_t can_export;  /* 1: its backend encodes from it */
    uint32_t can_stage;   /* 1: LLAMA_CACHEGEN_HOST_STAGED takes it through host memory where its backend cannot */
    char     backend[32]; /* name of the backend that holds it */
};

/* 1 to go on, 0 to stop: the call then fails with ERR_CANCELLED and rolls back. Asked before every block. */
typedef int32_t (*llama_cachegen_continue_t)(void * user_data, uint64_t done_bytes, uint64_t total_bytes);

enum llama_cachegen_flags {
    /* Components whose backend has no codec for them go by way of host memory, a few blocks at a time: slower, and with
     * as many bytes over the bus as the cache has. Of an export whose components are not all coded by one backend,
     * every component outside of host memory goes that way. Without the flag such calls are refused. */
    LLAMA_CACHEGEN_HOST_STAGED = 1
};

/* Where an archive lies in a file. */
struct llama_cachegen_file {
    int32_t  fd;       /* IN  open for reading or for writing, borrowed; its position is neither used nor changed */
    uint32_t reserved; /* IN  0 */
    uint64_t offset;   /* IN  of the archive's first byte */
};

/* How to do it. A NULL pointer to it means all zeros. */
struct llama_cachegen_options {
    uint32_t                  struct_size;   /* IN  sizeof(struct llama_cachegen_options) */
    uint32_t                  flags;         /* IN  enum llama_cachegen_flags */
    uint32_t                  n_threads;     /* IN  0: as many as the context decodes with */
    uint32_t                  reserved;      /* IN  0 */
    llama_cachegen_continue_t go_on;         /* IN  or NULL */
    void *                    user_data;     /* IN  handed to go_on; the caller's */
    const int32_t *           tokens;        /* IN  import: ids of the tokens imported, or NULL; models whose cells keep
                                                    them need it (n-gram embeddings). Not kept. */
    const struct llama_cachegen_file * file; /* IN  or NULL. llama_cachegen_import_archive(): where the archive's memory
                                                    is a mapping of. A device's decoder then reads the payload from
                                                    it, on several threads, as faults of pages cost more.
                                                    llama_cachegen_export(): what is written to in place of calling
                                                    write(). Ignored where the system has no pread() and pwrite().
                                                    Borrowed. */
};

/* What was done, and how long it took. */
struct llama_cachegen_stats {
    uint32_t struct_size;   /* IN  sizeof(struct llama_cachegen_stats) */
    uint32_t n_components;  /* OUT */
    uint32_t n_backends;    /* OUT that coded them; the CPU for those that were staged */
    uint32_t n_cell_runs;   /* OUT runs of adjacent cells */
    uint32_t n_threads;     /* OUT */
    uint32_t n_tokens;      /* OUT */
    uint64_t archive_bytes; /* OUT */
    uint64_t native_bytes;  /* OUT bytes of the same tokens in the cache */
    double   drain_ms;      /* OUT waiting for compute, applying pending shifts and copies */
    double   reserve_ms;    /* OUT import: validating the metadata, comparing layouts, finding cells */
    double   code_ms;       /* OUT decoding or encoding; export: write_ms is in it */
    double   commit_ms;     /* OUT import: making the cells part of the sequence */
    /* OUT what the call held at most besides the cache and the caller's archive: the archive's tables and entropy
       decoders or encoders, the scratch of all threads, units that are not written yet, lists of cells. Counted where
       it is allocated, in bytes asked for; without objects of a few hundred bytes, threads, and what an import puts
       aside of the cells of a window or a state. Several backends: the sum of their own peaks. */
    uint64_t peak_transient_bytes;
    uint32_t n_host_staged; /* OUT components that went by way of host memory */
    int32_t  system_error;  /* OUT export, also if it fails with ERR_WRITE: errno of the write that failed, else 0 */
    double   write_ms;      /* OUT export: time during which the caller's function or a file was written to */
};

/* An import in progress. Decode and state restores of its context are refused until it is closed. */
struct llama_cachegen_import;

/* How one component is coded. */
struct llama_cachegen_coding {
    int32_t  layer;
    int32_t  kind;         /* enum llama_kv_page_kind */
    uint32_t n_levels;     /* odd, 3 to 63; 0: lossless */
    int32_t  scale_type;   /* enum ggml_type of a token's scale: F32, F16 or BF16 */
    uint32_t is_unrotated; /* 1: code the values as they were before the cache's rotation */
};

/* How a page is coded: see docs/formats/lcg3.md. */
struct llama_cachegen_profile {
    uint32_t struct_size;     /* IN sizeof(struct llama_cachegen_profile) */
    uint32_t block_tokens;    /* IN tokens of a block, 32 to 65,536 */
    uint32_t n_exact_tokens;  /* IN the first tokens, kept as they are */
    uint32_t n_models;        /* IN shared models, 1 to 256 */
    uint32_t n_classes;       /* IN context classes, 1 to 16 */
    uint32_t n_sample_tokens; /* IN tokens the models are made from; 0: all */
    char     name[16];        /* IN kept in the archive, ASCII, padded with zeros */
};

/* 0 to go on, another number to stop: the export then fails with ERR_CANCELLED. Pieces come in ascending order, the
   one at offset 0 last. */
typedef int32_t (*llama_cachegen_write_t)(void * user_data, uint64_t offset, const void * bytes, uint64_t n_bytes);

/* The class of a context's memory: "dense", "iswa", "recurrent", "hybrid", "hybrid-iswa", "hybrid-idx", "dsa",
 * "dsa-iswa", "msa", "dsv4", "none" or "unknown". Static string; "unknown" for a NULL context. */
LLAMA_KV_PAGE_API const char * llama_cachegen_memory_class(struct llama_context * ctx);

/* What each component of this context can do.
 *   ctx               IN   borrowed
 *   format            IN   enum llama_cachegen_format
 *   components        OUT  caller's array, or NULL
 *   n_components_max  IN   its length
 *   n_components      OUT  how many there are */
LLAMA_KV_PAGE_API int32_t llama_cachegen_get_caps(struct llama_context * ctx, int32_t format,
                                                  struct llama_cachegen_component_caps * components,
                                                  uint32_t n_components_max, uint32_t * n_components);

/* Compare an archive's metadata with the live layout, change nothing.
 *   seq_id, p0              IN  where the tokens would go
 *   metadata, n_bytes       IN  the archive's beginning, its metadata at least
 *   archive_bytes           IN  size of the whole archive
 *   first_token, n_tokens   IN  range of the archive's tokens */
LLAMA_KV_PAGE_API int32_t llama_cachegen_validate(struct llama_context * ctx, int32_t seq_id, int32_t p0,
                                                  const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                                  uint32_t first_token, uint32_t n_tokens,
                                                  const struct llama_cachegen_options * options);

/* Append tokens [first_token, first_token + n_tokens) of an archive to a sequence, all or nothing.
 *   p0                      IN     position of the first of them; must be the one after the sequence's last
 *   archive, archive_bytes  IN     the whole archive; not kept
 *   stats                   INOUT  or NULL */
LLAMA_KV_PAGE_API int32_t llama_cachegen_import_archive(struct llama_context * ctx, int32_t seq_id, int32_t p0,
                                                        const void * archive, uint64_t archive_bytes,
                                                        uint32_t first_token, uint32_t n_tokens,
                                                        const struct llama_cachegen_options * options,
                                                        struct llama_cachegen_stats *         stats);

/* The same while the archive comes in, so that reading, upload and decoding overlap.
 * Validate, reserve cells. On success the caller owns *import and must give it to llama_cachegen_import_close(), before
 * the context is freed.
 *   metadata, n_bytes  IN   kept: must stay as they are until the import is closed
 *   import             OUT  NULL on failure */
LLAMA_KV_PAGE_API int32_t llama_cachegen_import_begin(struct llama_context * ctx, int32_t seq_id, int32_t p0,
                                                      const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                                      uint32_t first_token, uint32_t n_tokens,
                                                      const struct llama_cachegen_options * options,
                                                      struct llama_cachegen_import **       import);

/* Which bytes of the archive are wanted next; parts outside of the range of tokens are left out.
 *   offset, n_bytes  OUT  n_bytes 0: all are there, commit */
LLAMA_KV_PAGE_API int32_t llama_cachegen_import_next(const struct llama_cachegen_import * import, uint64_t * offset,
                                                     uint64_t * n_bytes);

/* Decode the bytes asked for.
 *   bytes, n_bytes  IN  as llama_cachegen_import_next() said; not kept */
LLAMA_KV_PAGE_API int32_t llama_cachegen_import_feed(struct llama_cachegen_import * import, const void * bytes,
                                                     uint64_t n_bytes);

/* Make the cells part of the sequence. After a failure the import can only be closed.
 *   stats  INOUT  or NULL */
LLAMA_KV_PAGE_API int32_t llama_cachegen_import_commit(struct llama_cachegen_import * import,
                                                       struct llama_cachegen_stats *  stats);

/* Free an import; roll it back if it was not committed.
 *   import  IN  ownership passes to the library; NULL is allowed */
LLAMA_KV_PAGE_API void llama_cachegen_import_close(struct llama_cachegen_import * import);

/* Encode positions [p0, p1) of a sequence where they lie.
 *   profile             IN
 *   codings, n_codings  IN     one for every component of the context, in the order of llama_kv_page_describe()
 *   write, user_data    IN     where the archive goes; not called if it goes to options->file
 *   archive_bytes       OUT
 *   stats               INOUT  or NULL */
LLAMA_KV_PAGE_API int32_t llama_cachegen_export(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1,
                                                const struct llama_cachegen_profile * profile,
                                                const struct llama_cachegen_coding * codings, uint32_t n_codings,
                                                llama_cachegen_write_t write, void * user_data,
                                                const struct llama_cachegen_options * options, uint64_t * archive_bytes,
                                                struct llama_cachegen_stats * stats);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_CACHEGEN_H */
