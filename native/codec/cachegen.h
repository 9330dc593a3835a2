/*
 * libcachegen: KV-cache archives. Quantiser, entropy coders, typed stores and the formats LCG1, LCG2, CKG1 and LCG3.
 * Plain C++17 inside, no dependency, nothing of llama.cpp.
 *
 * Rules of the whole interface
 *  - Every function that can fail returns an enum cachegen_status. On failure cachegen_last_message() says what was
 *    wrong, where, and what to do. No C++ exception crosses the interface.
 *  - Input bytes are never trusted: sizes, tables, bounds and digests are checked before anything is allocated by them.
 *    A failed decode may have written part of the destination; it never writes outside of it.
 *  - The library keeps no pointer to the caller's memory after a call returns.
 *  - All functions may be called from several threads at once. The message is thread-local.
 *  - Structs that grow carry their size in the first field; the caller sets it to sizeof(struct ...). A size this
 *    library does not know is refused, never guessed.
 *  - Numbers in archives are little-endian. Values are IEEE 754 and rounded to nearest, ties to even, unless said.
 *
 * This header includes only fixed-width integer types, so that a foreign function interface can read it as it is.
 */
#ifndef CACHEGEN_H
#define CACHEGEN_H

#include <stdint.h>

#ifndef CACHEGEN_API
#    if defined(_WIN32) && !defined(__MINGW32__)
#        define CACHEGEN_API
#    else
#        define CACHEGEN_API __attribute__((visibility("default")))
#    endif
#endif

#define CACHEGEN_API_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

/* Why a call failed. Numbers are part of the interface: they are never reused. */
enum cachegen_status {
    CACHEGEN_OK = 0,

    /* the call is wrong */
    CACHEGEN_ERR_ARGUMENT    = 1, /* NULL pointer, zero or overflowing number, unknown enum value */
    CACHEGEN_ERR_STRUCT_SIZE = 2, /* a sized struct of another interface version */
    CACHEGEN_ERR_BUFFER_SIZE =
        3, /* the output does not fit; the needed size is reported where there is a place for it */

    /* the input cannot be encoded */
    CACHEGEN_ERR_NON_FINITE = 10, /* a NaN or an infinity among the values */
    CACHEGEN_ERR_ALPHABET   = 11, /* more distinct symbols than the format can hold */

    /* the archive is damaged or made to do harm */
    CACHEGEN_ERR_TRUNCATED = 20, /* the bytes end too early */
    CACHEGEN_ERR_TRAILING  = 21, /* bytes after the end */
    CACHEGEN_ERR_MAGIC     = 22, /* not this format */
    CACHEGEN_ERR_VERSION   = 23, /* this format, in a version this library does not read */
    CACHEGEN_ERR_RESERVED  = 24, /* a reserved bit or byte is not zero */
    CACHEGEN_ERR_GEOMETRY  = 25, /* counts or sizes that contradict each other */
    CACHEGEN_ERR_COVERAGE  = 26, /* blocks or records that overlap or leave a gap */
    CACHEGEN_ERR_TABLE     = 27, /* a probability table, level table or index that breaks its rules */
    CACHEGEN_ERR_STREAM    = 28, /* coded symbols that no encoder wrote */
    CACHEGEN_ERR_DIGEST    = 29, /* bytes do not match their digest */
    CACHEGEN_ERR_LIMIT     = 30, /* larger than this library accepts */

    /* the archive is sound, this call cannot serve it */
    CACHEGEN_ERR_UNSUPPORTED = 40, /* no such type, layout or mode in this library */
    CACHEGEN_ERR_MISMATCH    = 41, /* the destination is not what the archive holds */

    /* the caller */
    CACHEGEN_ERR_CALLBACK = 50, /* a function of the caller asked to stop */

    /* the system */
    CACHEGEN_ERR_OUT_OF_MEMORY = 70,
    CACHEGEN_ERR_INTERNAL      = 71
};

/* Types of stored values, under ggml's own numbers. 0 is F32, never "unset". */
enum cachegen_type {
    CACHEGEN_TYPE_F32  = 0,
    CACHEGEN_TYPE_F16  = 1,
    CACHEGEN_TYPE_Q4_0 = 2,
    CACHEGEN_TYPE_Q8_0 = 8,
    CACHEGEN_TYPE_BF16 = 30
};

/* OUT the interface version of the library, CACHEGEN_API_VERSION */
CACHEGEN_API uint32_t cachegen_api_version(void);

/* OUT the name of a status, for example "ERR_TABLE"; static, never NULL, "UNKNOWN" for other numbers */
CACHEGEN_API const char * cachegen_status_name(int32_t status);

/* OUT what went wrong in the last failed call on this thread; valid until the next call on this thread, never NULL */
CACHEGEN_API const char * cachegen_last_message(void);

/* ---- work on several threads ---- */

/*
 * How a call spreads its work. The library starts no thread of its own unless it is given an executor that does.
 * parallel_for must call task(context, i) once for every i in [0, n_tasks), on any threads, and return when all are
 * done.
 */
struct cachegen_executor {
    void * state; /* IN handed back to parallel_for; the caller's */
    void (*parallel_for)(void * state, uint64_t n_tasks, void (*task)(void * context, uint64_t index), void * context);
};

/*
 * A small pool of threads for callers that have none.
 * n_threads  IN  threads that work, the calling one included; 1 to 1024
 * executor   OUT a pool owned by the caller, to be freed with cachegen_executor_free
 */
CACHEGEN_API int32_t cachegen_executor_new(uint32_t n_threads, struct cachegen_executor ** executor);

/* executor  IN  NULL does nothing; no call may be using it */
CACHEGEN_API void cachegen_executor_free(struct cachegen_executor * executor);

/* ---- instruction sets ---- */

enum cachegen_isa { CACHEGEN_ISA_SCALAR = 0, CACHEGEN_ISA_AVX2 = 1, CACHEGEN_ISA_AVX512 = 2, CACHEGEN_ISA_NEON = 3 };

/* OUT the instruction set in use, enum cachegen_isa: the best one of this processor, unless another was selected */
CACHEGEN_API uint32_t cachegen_isa_active(void);

/*
 * Use another one from now on, in the whole process: for tests and benchmarks. All of them give the same bits.
 * isa  IN  enum cachegen_isa; ERR_UNSUPPORTED if this processor or build lacks it
 */
CACHEGEN_API int32_t cachegen_isa_select(uint32_t isa);

/* ---- typed stores ---- */

/*
 * Where one component's values lie. Token t is row cells[t], or row t if cells is NULL.
 *   rows:       channels adjacent, quantised in blocks of 32 channels; row r begins at data + r * stride_bytes
 *   transposed: tokens adjacent; channel c begins at data + c * stride_bytes, row r is its element r (F32, F16, BF16
 * only)
 */
struct cachegen_rows {
    uint32_t         type;          /* IN enum cachegen_type */
    uint32_t         is_transposed; /* IN 0 or 1 */
    uint64_t         n_tokens;      /* IN tokens addressable through cells, or rows if cells is NULL */
    uint64_t         n_rows;        /* IN rows that exist: every cells[t] is smaller */
    uint64_t         n_channels;    /* IN values of a row */
    uint64_t         stride_bytes;  /* IN see above */
    uint64_t         n_bytes;       /* IN bytes that exist at data */
    const uint32_t * cells;         /* IN n_tokens row numbers, or NULL; the caller's */
    void *           data;          /* IN or OUT by the call; the caller's */
};

/*
 * Read values of any type as F32: F16 and BF16 widened, blocks dequantised as ggml does.
 * source       IN  not changed
 * first_token  IN  and
 * n_tokens     IN  the tokens to read
 * values       OUT n_tokens x n_channels, token-major; the caller's
 */
CACHEGEN_API int32_t cachegen_load_rows(const struct cachegen_rows * source, uint64_t first_token, uint64_t n_tokens,
                                        float * values);

/*
 * Write values as any type, bit-equal to ggml_quantize_chunk (blocks) and to ggml_fp32_to_fp16 / _bf16.
 * destination  IN  its data is OUT
 * first_token  IN  and
 * n_tokens     IN  the tokens to write
 * values       IN  n_tokens x n_channels, token-major
 */
CACHEGEN_API int32_t cachegen_store_rows(const struct cachegen_rows * destination, uint64_t first_token,
                                         uint64_t n_tokens, const float * values);

/*
 * Rotate every n_rot adjacent values by the normalised Hadamard matrix, in place. It is its own inverse but for
 * rounding. values    IN/OUT n_values n_values  IN     a multiple of n_rot n_rot     IN     a power of two, 2 to 1024;
 * 0 does nothing
 */
CACHEGEN_API int32_t cachegen_hadamard(float * values, uint64_t n_values, uint32_t n_rot);

/* ---- LCG3: see docs/formats/lcg3.md ---- */

enum cachegen_kind { CACHEGEN_KIND_K = 1, CACHEGEN_KIND_V = 2, CACHEGEN_KIND_AUX = 3 };

enum cachegen_lcg3_mode {
    CACHEGEN_LCG3_RAW   = 0, /* native rows as they are */
    CACHEGEN_LCG3_LOSSY = 1, /* quantised: one scale a token, n_symbols levels */
    CACHEGEN_LCG3_EXACT = 2  /* lossless: every bit of the native rows comes back */
};

/* One component of a page in an archive: what the encoder is to make of it, or what a reader finds. */
struct cachegen_lcg3_plane {
    uint32_t struct_size;   /* IN  sizeof(struct cachegen_lcg3_plane) */
    int32_t  layer;         /* model layer */
    uint32_t kind;          /* enum cachegen_kind */
    uint32_t mode;          /* enum cachegen_lcg3_mode */
    uint32_t type;          /* enum cachegen_type of the source */
    uint32_t n_channels;    /* values of a token's row */
    uint32_t n_rot;         /* Hadamard rotation of the source, 0 for none */
    uint32_t is_unrotated;  /* lossy: 1: the values are coded as they were before the rotation */
    uint32_t n_symbols;     /* lossy: odd, 3 to 63; the encoder's levels are uniform from -1 to 1 */
    uint32_t scale_type;    /* lossy: type of a scale: F32, F16 (values above 65,504 in magnitude: refused) or BF16 */
    uint32_t first_token;   /* the plane holds tokens from this one on, as a sliding window does; 0: all */
    uint32_t reserved0;     /* IN 0 */
    uint64_t payload_bytes; /* OUT by describe: bytes of all its units */
    uint64_t symbol_bytes;  /* OUT by describe: of them, words of the entropy coder; 0 if only the metadata is open */
};

struct cachegen_lcg3_options {
    uint32_t struct_size;     /* IN sizeof(struct cachegen_lcg3_options) */
    uint32_t flags;           /* IN 0 */
    uint32_t block_tokens;    /* IN tokens of a block, 32 to 65,536 */
    uint32_t n_exact_tokens;  /* IN the first tokens, kept as native rows; at most 4,096 */
    uint32_t n_models;        /* IN shared models of a symbol set, 1 to 256 */
    uint32_t n_classes;       /* IN context classes of the token before: 1 (order 0) to 16 */
    uint32_t n_sample_tokens; /* IN tokens the models are made from, spread over the page; 0: all */
    uint32_t reserved;        /* IN 0 */
    char     profile[16];     /* IN name kept in the archive, ASCII, padded with zeros */
};

struct cachegen_lcg3_info {
    uint32_t struct_size;    /* IN  sizeof(struct cachegen_lcg3_info) */
    uint32_t n_planes;       /* OUT */
    uint64_t archive_bytes;  /* OUT */
    uint64_t metadata_bytes; /* OUT all that comes before the payload */
    uint64_t table_bytes;    /* OUT of them, symbol sets and model numbers */
    uint32_t n_tokens;       /* OUT */
    uint32_t n_exact_tokens; /* OUT */
    uint32_t block_tokens;   /* OUT */
    uint32_t n_blocks;       /* OUT */
    uint32_t n_sets;         /* OUT */
    uint32_t n_classes;      /* OUT largest of any set: 1 means order 0 throughout */
    char     profile[16];    /* OUT */
};

/* A validated archive. */
struct cachegen_lcg3;

/* Where one plane goes. rows.data NULL leaves the plane out. Token 0 of rows is the range's first token that the plane
   holds and that is wanted. */
struct cachegen_lcg3_destination {
    struct cachegen_rows rows;        /* IN n_tokens at least as many as are decoded into it; any type and layout */
    uint32_t             n_rot;       /* IN Hadamard rotation the destination wants, 0 for none */
    uint32_t             first_token; /* IN tokens of the archive before this one are not wanted here; 0: all are */
};

/*
 * Encode a page.
 * planes    IN  n_planes
 * sources   IN  n_planes; first_token + n_tokens is the same for all; their data is not changed
 * options   IN
 * executor  IN  NULL: on the calling thread
 * archive   OUT the archive, owned by the caller, to be freed with cachegen_free
 * n_bytes   OUT its size
 */
CACHEGEN_API int32_t cachegen_lcg3_encode(const struct cachegen_lcg3_plane * planes,
                                          const struct cachegen_rows * sources, uint64_t n_planes,
                                          const struct cachegen_lcg3_options * options,
                                          const struct cachegen_executor * executor, void ** archive,
                                          uint64_t * n_bytes);

/* Where an archive is written, piece by piece. */
struct cachegen_sink {
    void * state; /* IN handed back to write; the caller's */
    /* 0 to go on, another number to stop: the call then fails with ERR_CALLBACK */
    int32_t (*write)(void * state, uint64_t offset, const void * bytes, uint64_t n_bytes);
};

/*
 * The same without the archive in memory. The payload is written in order, on the calling thread, beginning where the
 * metadata will end; the metadata comes last, at offset 0. If this fails, what was written is no archive.
 * sink     IN
 * n_bytes  OUT the archive's size
 */
CACHEGEN_API int32_t cachegen_lcg3_encode_to(const struct cachegen_lcg3_plane * planes,
                                             const struct cachegen_rows * sources, uint64_t n_planes,
                                             const struct cachegen_lcg3_options * options,
                                             const struct cachegen_executor *     executor,
                                             const struct cachegen_sink * sink, uint64_t * n_bytes);

/* Where an encoder reads rows that are not in memory, a stretch at a time. */
struct cachegen_row_reader {
    void * state; /* IN handed back to read; the caller's */
    /* Read source tokens [first_token, first_token + n_tokens) of a plane, from any thread, several at a time.
     * rows  OUT rows of the source's type one after another; transposed: n_channels times n_tokens elements
     * 0 to go on, another number to stop: the call then fails with ERR_CALLBACK */
    int32_t (*read)(void * state, uint64_t plane, uint64_t first_token, uint64_t n_tokens, void * rows);
};

/*
 * The same with sources that are read as they are needed: the whole of an exact plane twice, in stretches of a block,
 * of others a sample and then each block. sources  IN  of those with data NULL, type, is_transposed, n_channels and
 * n_tokens count reader   IN  for them
 */
CACHEGEN_API int32_t cachegen_lcg3_encode_from(const struct cachegen_lcg3_plane * planes,
                                               const struct cachegen_rows * sources, uint64_t n_planes,
                                               const struct cachegen_row_reader *   reader,
                                               const struct cachegen_lcg3_options * options,
                                               const struct cachegen_executor *     executor,
                                               const struct cachegen_sink * sink, uint64_t * n_bytes);

/* bytes  IN  what an encoder of this library returned; NULL does nothing */
CACHEGEN_API void cachegen_free(void * bytes);

/*
 * Validate everything before the payload and prepare to decode.
 * archive  IN  exactly one archive; must stay as it is until cachegen_lcg3_close
 * reader   OUT owned by the caller
 */
CACHEGEN_API int32_t cachegen_lcg3_open(const void * archive, uint64_t n_bytes, struct cachegen_lcg3 ** reader);

/*
 * To decode an archive while it is read: its parts lie one after another, part 0 from the end of the metadata, part
 * 1 + b being block b.
 *
 * How many bytes the metadata has.
 * header          IN  the archive's first n_bytes, 64 at least
 * archive_bytes   IN  size of the whole archive
 * metadata_bytes  OUT
 */
CACHEGEN_API int32_t cachegen_lcg3_metadata_bytes(const void * header, uint64_t n_bytes, uint64_t archive_bytes,
                                                  uint64_t * metadata_bytes);

/*
 * Validate the metadata alone. The reader can be described, without symbol_bytes, and decoded part by part.
 * metadata       IN  the archive's first n_bytes; must stay as they are until cachegen_lcg3_close
 * archive_bytes  IN  size of the whole archive
 * reader         OUT owned by the caller
 */
CACHEGEN_API int32_t cachegen_lcg3_open_metadata(const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                                 struct cachegen_lcg3 ** reader);

/*
 * Where a part lies.
 * part     IN  0 to the number of blocks
 * offset   OUT from the archive's begin
 * n_bytes  OUT
 */
CACHEGEN_API int32_t cachegen_lcg3_part(const struct cachegen_lcg3 * reader, uint32_t part, uint64_t * offset,
                                        uint64_t * n_bytes);

/*
 * Check a part against its digest and decode what the range has of it, as cachegen_lcg3_decode does.
 * bytes  IN  exactly the part; not kept
 */
CACHEGEN_API int32_t cachegen_lcg3_decode_part(const struct cachegen_lcg3 * reader, uint32_t part, const void * bytes,
                                               uint64_t n_bytes, uint64_t first_token, uint64_t n_tokens,
                                               const struct cachegen_lcg3_destination * destinations,
                                               uint64_t n_destinations, const struct cachegen_executor * executor);

/* reader  IN  NULL does nothing */
CACHEGEN_API void cachegen_lcg3_close(struct cachegen_lcg3 * reader);

/*
 * info      IN/OUT
 * planes    OUT capacity planes in the archive's order, or NULL; each has its struct_size set by the call
 */
CACHEGEN_API int32_t cachegen_lcg3_describe(const struct cachegen_lcg3 * reader, struct cachegen_lcg3_info * info,
                                            struct cachegen_lcg3_plane * planes, uint64_t capacity);

/*
 * Compare every digest of the payload, decode nothing.
 */
CACHEGEN_API int32_t cachegen_lcg3_verify(const struct cachegen_lcg3 *     reader,
                                          const struct cachegen_executor * executor);

/*
 * Decode tokens [first_token, first_token + n_tokens) into destination tokens 0 to n_tokens - 1. Whole blocks are
 * decoded; what lies outside of the range is dropped.
 * destinations    IN  one a plane, their data is OUT
 * n_destinations  IN  must be the number of planes
 */
CACHEGEN_API int32_t cachegen_lcg3_decode(const struct cachegen_lcg3 * reader, uint64_t first_token, uint64_t n_tokens,
                                          const struct cachegen_lcg3_destination * destinations,
                                          uint64_t n_destinations, const struct cachegen_executor * executor);

/* ---- LCG1, LCG2 and CKG1, formats of another project: see docs/formats/lcg1.md, lcg2.md, ckg1.md ---- */

/* What the header of a tile says. */
struct cachegen_tile_info {
    uint32_t struct_size;  /* IN  sizeof(struct cachegen_tile_info) */
    uint32_t version;      /* OUT 1 LCG1, 2 LCG2 */
    uint32_t n_bins;       /* OUT 16 or 32 */
    uint32_t n_tokens;     /* OUT 1 to 256 */
    uint32_t n_channels;   /* OUT */
    uint32_t stream_bytes; /* OUT bytes of its symbols */
};

/*
 * Check the header of a tile against its size.
 * bytes  IN  exactly one tile
 * info   IN/OUT
 */
CACHEGEN_API int32_t cachegen_tile_describe(const void * bytes, uint64_t n_bytes, struct cachegen_tile_info * info);

/*
 * Decode a tile. Every value is an F16 number first, then stored as the destination's type.
 * bytes        IN  exactly one tile
 * destination  IN  as many channels as the tile; its data is OUT
 * first_token  IN  token of the destination that the tile's first one becomes
 */
CACHEGEN_API int32_t cachegen_tile_decode(const void * bytes, uint64_t n_bytes,
                                          const struct cachegen_rows * destination, uint64_t first_token);

/*
 * Encode a tile: n_tokens tokens of the source, 256 at most.
 * n_bins   IN  16 or 32
 * version  IN  1 LCG1, 2 LCG2
 * tile     OUT the tile, owned by the caller, to be freed with cachegen_free
 * n_bytes  OUT its size
 */
CACHEGEN_API int32_t cachegen_tile_encode(const struct cachegen_rows * source, uint64_t first_token, uint32_t n_tokens,
                                          uint32_t n_bins, uint32_t version, void ** tile, uint64_t * n_bytes);

/* How the values of a record lie in the page. */
enum cachegen_ckg1_kind {
    CACHEGEN_CKG1_F16_ROWS       = 0,
    CACHEGEN_CKG1_EXACT          = 1, /* bytes as they are */
    CACHEGEN_CKG1_F16_TRANSPOSED = 2,
    CACHEGEN_CKG1_F32_ROWS       = 3,
    CACHEGEN_CKG1_F32_TRANSPOSED = 4,
    CACHEGEN_CKG1_Q8_0_ROWS      = 5,
    CACHEGEN_CKG1_Q4_0_ROWS      = 6
};

/* A record of an archive, as a reader finds it. */
struct cachegen_ckg1_record {
    uint32_t kind;         /* enum cachegen_ckg1_kind */
    uint32_t tile_version; /* 1 LCG1, 2 LCG2; 0 for exact bytes, as the next two */
    uint32_t n_bins;
    uint32_t n_channels;
    uint64_t output_offset; /* in the page: of its first byte, or of the whole slab if it is transposed */
    uint64_t decoded_bytes; /* what it decodes to */
    uint64_t n_tokens;
    uint64_t token_start;    /* transposed: its first token in the slab */
    uint64_t total_tokens;   /* transposed: tokens of the slab */
    uint64_t payload_offset; /* in the archive: the tile, or the exact bytes */
    uint64_t payload_bytes;
};

/* A validated archive. */
struct cachegen_ckg1;

/*
 * Validate all headers and that the records cover the page exactly.
 * archive  IN  exactly one archive; must stay as it is until cachegen_ckg1_close
 * reader   OUT owned by the caller
 */
CACHEGEN_API int32_t cachegen_ckg1_open(const void * archive, uint64_t n_bytes, struct cachegen_ckg1 ** reader);

/* reader  IN  NULL does nothing */
CACHEGEN_API void cachegen_ckg1_close(struct cachegen_ckg1 * reader);

/*
 * page_bytes  OUT size of the decoded page
 * n_records   OUT
 * records     OUT capacity records in the archive's order, or NULL
 */
CACHEGEN_API int32_t cachegen_ckg1_describe(const struct cachegen_ckg1 * reader, uint64_t * page_bytes,
                                            uint64_t * n_records, struct cachegen_ckg1_record * records,
                                            uint64_t capacity);

/*
 * Decode the whole page. To decode single tiles elsewhere, use cachegen_tile_decode on a record's payload.
 * page     OUT n_bytes, the size of the page
 */
CACHEGEN_API int32_t cachegen_ckg1_decode(const struct cachegen_ckg1 * reader, void * page, uint64_t n_bytes,
                                          const struct cachegen_executor * executor);

/* What an encoder lays into a page. */
struct cachegen_ckg1_part {
    uint32_t             kind;      /* IN enum cachegen_ckg1_kind */
    uint32_t             n_bins;    /* IN 16 or 32; not used for exact bytes */
    uint32_t             reserved0; /* IN 0 */
    struct cachegen_rows rows;      /* IN of the kind's type and layout; exact: data and n_bytes */
};

/*
 * Encode a page that holds the parts one after another, in tiles of up to 256 tokens.
 * version  IN  of the tiles: 1 LCG1, 2 LCG2
 * archive  OUT the archive, owned by the caller, to be freed with cachegen_free
 * n_bytes  OUT its size
 */
CACHEGEN_API int32_t cachegen_ckg1_encode(const struct cachegen_ckg1_part * parts, uint64_t n_parts, uint32_t version,
                                          const struct cachegen_executor * executor, void ** archive,
                                          uint64_t * n_bytes);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
