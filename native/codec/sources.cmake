# What libcachegen is made of. The decoder builds without the encoder. A file named *_avx2.cpp, *_avx512.cpp or *_neon.cpp
# is compiled for that instruction set, on processors that have it; isa.cpp chooses at run time.

set(CACHEGEN_DECODER_SOURCES
    arithmetic_decode.cpp
    ckg1_decode.cpp
    digest.cpp
    executor.cpp
    hadamard.cpp
    isa.cpp
    lcg3_archive.cpp
    lcg3_decode.cpp
    lcg3_dequantize.cpp
    lcg3_request.cpp
    meter.cpp
    native_tile.cpp
    rans_decode.cpp
    rans_table.cpp
    status.cpp
    symbol_unpack.cpp
    tile_decode.cpp
    typed_store.cpp
)

set(CACHEGEN_DECODER_SOURCES_AVX2
    digest_avx2.cpp
    lcg3_dequantize_avx2.cpp
    rans_decode_avx2.cpp
    symbol_unpack_avx2.cpp
    typed_store_avx2.cpp
)

set(CACHEGEN_DECODER_SOURCES_AVX512
    digest_avx512.cpp
    lcg3_dequantize_avx512.cpp
    rans_decode_avx512.cpp
    symbol_unpack_avx512.cpp
)

set(CACHEGEN_DECODER_SOURCES_NEON
    lcg3_dequantize_neon.cpp
    rans_decode_neon.cpp
    typed_store_neon.cpp
)

set(CACHEGEN_ENCODER_SOURCES
    arithmetic_encode.cpp
    caller_bytes.cpp
    ckg1_encode.cpp
    lcg3_encode.cpp
    lcg3_models.cpp
    lcg3_quantize.cpp
    lcg3_symbols.cpp
    rans_encode.cpp
    tile_encode.cpp
)

set(CACHEGEN_ENCODER_SOURCES_AVX2
    lcg3_quantize_avx2.cpp
    rans_encode_avx2.cpp
)

set(CACHEGEN_ENCODER_SOURCES_AVX512
    rans_encode_avx512.cpp
)

set(CACHEGEN_ENCODER_SOURCES_NEON
    lcg3_quantize_neon.cpp
)
