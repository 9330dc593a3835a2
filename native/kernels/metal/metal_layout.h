// The layout of every record that Metal's host code and kernels share, in bytes. Both compilers assert it, so that a
// field that is moved on one side, or laid out otherwise, ends the build. To change a record, change it here too.
#pragma once

namespace kernels {

#define KC_FIELD(record, field, offset, n_bytes)                                                                       \
    static_assert(__builtin_offsetof(record, field) == offset && sizeof(record::field) == n_bytes,                     \
                  #record "::" #field " is elsewhere than on the other side")
#define KC_BYTES(record, n_bytes)                                                                                      \
    static_assert(sizeof(record) == n_bytes, #record " has another size than on the other side")

KC_BYTES(metal_decode_arguments, 112);
KC_FIELD(metal_decode_arguments, units, 0, 8);
KC_FIELD(metal_decode_arguments, groups, 8, 8);
KC_FIELD(metal_decode_arguments, bytes, 16, 8);
KC_FIELD(metal_decode_arguments, n_bytes, 24, 8);
KC_FIELD(metal_decode_arguments, table, 32, 8);
KC_FIELD(metal_decode_arguments, values, 40, 8);
KC_FIELD(metal_decode_arguments, models, 48, 8);
KC_FIELD(metal_decode_arguments, cells, 56, 8);
KC_FIELD(metal_decode_arguments, group_words, 64, 8);
KC_FIELD(metal_decode_arguments, errors, 72, 8);
KC_FIELD(metal_decode_arguments, n_groups, 80, 4);
KC_FIELD(metal_decode_arguments, set, 84, 24);
KC_FIELD(metal_decode_arguments, reserved, 108, 4);

KC_BYTES(metal_legacy_arguments, 56);
KC_FIELD(metal_legacy_arguments, units, 0, 8);
KC_FIELD(metal_legacy_arguments, jobs, 8, 8);
KC_FIELD(metal_legacy_arguments, bytes, 16, 8);
KC_FIELD(metal_legacy_arguments, cells, 24, 8);
KC_FIELD(metal_legacy_arguments, group_streams, 32, 8);
KC_FIELD(metal_legacy_arguments, errors, 40, 8);
KC_FIELD(metal_legacy_arguments, n_jobs, 48, 4);
KC_FIELD(metal_legacy_arguments, reserved, 52, 4);

KC_BYTES(metal_encode_arguments, 200);
KC_FIELD(metal_encode_arguments, planes, 0, 8);
KC_FIELD(metal_encode_arguments, groups, 8, 8);
KC_FIELD(metal_encode_arguments, cells, 16, 8);
KC_FIELD(metal_encode_arguments, models, 24, 8);
KC_FIELD(metal_encode_arguments, table, 32, 8);
KC_FIELD(metal_encode_arguments, slots, 40, 8);
KC_FIELD(metal_encode_arguments, class_of, 48, 8);
KC_FIELD(metal_encode_arguments, counts, 56, 8);
KC_FIELD(metal_encode_arguments, scales, 64, 8);
KC_FIELD(metal_encode_arguments, n_words, 72, 8);
KC_FIELD(metal_encode_arguments, first_chunk, 80, 8);
KC_FIELD(metal_encode_arguments, first_word, 88, 8);
KC_FIELD(metal_encode_arguments, states, 96, 8);
KC_FIELD(metal_encode_arguments, places, 104, 8);
KC_FIELD(metal_encode_arguments, cursors, 112, 8);
KC_FIELD(metal_encode_arguments, pool, 120, 8);
KC_FIELD(metal_encode_arguments, next_chunk, 128, 8);
KC_FIELD(metal_encode_arguments, made, 136, 8);
KC_FIELD(metal_encode_arguments, output, 144, 8);
KC_FIELD(metal_encode_arguments, n_jobs, 152, 4);
KC_FIELD(metal_encode_arguments, wave_begin, 156, 4);
KC_FIELD(metal_encode_arguments, page_end, 160, 4);
KC_FIELD(metal_encode_arguments, n_pool, 164, 4);
KC_FIELD(metal_encode_arguments, n_output, 168, 4);
KC_FIELD(metal_encode_arguments, set, 172, 20);
KC_FIELD(metal_encode_arguments, block_tokens, 192, 4);
KC_FIELD(metal_encode_arguments, reserved, 196, 4);

KC_BYTES(set_shape, 24);
KC_FIELD(set_shape, n_entries, 0, 4);
KC_FIELD(set_shape, n_models, 4, 4);
KC_FIELD(set_shape, n_classes, 8, 4);
KC_FIELD(set_shape, log2_n_buckets, 12, 4);
KC_FIELD(set_shape, initial_class, 16, 4);
KC_FIELD(set_shape, n_symbols, 20, 4);

KC_BYTES(encode_set_shape, 20);
KC_FIELD(encode_set_shape, n_entries, 0, 4);
KC_FIELD(encode_set_shape, n_classes, 4, 4);
KC_FIELD(encode_set_shape, log2_stride, 8, 4);
KC_FIELD(encode_set_shape, initial_class, 12, 4);
KC_FIELD(encode_set_shape, n_symbols, 16, 4);

KC_BYTES(unit_job, 120);
KC_FIELD(unit_job, bytes_offset, 0, 8);
KC_FIELD(unit_job, dest, 8, 8);
KC_FIELD(unit_job, native, 16, 8);
KC_FIELD(unit_job, dest_stride, 24, 4);
KC_FIELD(unit_job, n_rows, 28, 4);
KC_FIELD(unit_job, n_channels, 32, 4);
KC_FIELD(unit_job, n_groups, 36, 4);
KC_FIELD(unit_job, scales_offset, 40, 4);
KC_FIELD(unit_job, raw_offset, 44, 4);
KC_FIELD(unit_job, words_offset, 48, 4);
KC_FIELD(unit_job, scale_base, 52, 4);
KC_FIELD(unit_job, scale_bits, 56, 4);
KC_FIELD(unit_job, scale_type, 60, 4);
KC_FIELD(unit_job, n_scales_a_row, 64, 4);
KC_FIELD(unit_job, raw_bits, 68, 4);
KC_FIELD(unit_job, is_exact, 72, 4);
KC_FIELD(unit_job, native_type, 76, 4);
KC_FIELD(unit_job, models, 80, 4);
KC_FIELD(unit_job, group_words, 84, 4);
KC_FIELD(unit_job, first_row, 88, 4);
KC_FIELD(unit_job, end_row, 92, 4);
KC_FIELD(unit_job, cells, 96, 4);
KC_FIELD(unit_job, undo_rotation, 100, 4);
KC_FIELD(unit_job, apply_rotation, 104, 4);
KC_FIELD(unit_job, is_same, 108, 4);
KC_FIELD(unit_job, rotation_factor, 112, 4);

KC_BYTES(group_job, 8);
KC_FIELD(group_job, unit, 0, 4);
KC_FIELD(group_job, first_group, 4, 4);

KC_BYTES(legacy_unit, 56);
KC_FIELD(legacy_unit, bytes_offset, 0, 8);
KC_FIELD(legacy_unit, dest, 8, 8);
KC_FIELD(legacy_unit, dest_stride, 16, 4);
KC_FIELD(legacy_unit, n_tokens, 20, 4);
KC_FIELD(legacy_unit, n_channels, 24, 4);
KC_FIELD(legacy_unit, n_bins, 28, 4);
KC_FIELD(legacy_unit, group_streams, 32, 4);
KC_FIELD(legacy_unit, first_token, 36, 4);
KC_FIELD(legacy_unit, end_token, 40, 4);
KC_FIELD(legacy_unit, cells, 44, 4);
KC_FIELD(legacy_unit, first_cell, 48, 4);
KC_FIELD(legacy_unit, record, 52, 4);

KC_BYTES(encode_plane, 72);
KC_FIELD(encode_plane, data, 0, 8);
KC_FIELD(encode_plane, stride, 8, 4);
KC_FIELD(encode_plane, first_token, 12, 4);
KC_FIELD(encode_plane, cells, 16, 4);
KC_FIELD(encode_plane, n_channels, 20, 4);
KC_FIELD(encode_plane, n_groups, 24, 4);
KC_FIELD(encode_plane, models, 28, 4);
KC_FIELD(encode_plane, scales, 32, 4);
KC_FIELD(encode_plane, groups, 36, 4);
KC_FIELD(encode_plane, channels, 40, 4);
KC_FIELD(encode_plane, counts, 44, 4);
KC_FIELD(encode_plane, scale_type, 48, 4);
KC_FIELD(encode_plane, is_fp16, 52, 4);
KC_FIELD(encode_plane, rotation, 56, 4);
KC_FIELD(encode_plane, rotation_factor, 60, 4);
KC_FIELD(encode_plane, block_token, 64, 4);
KC_FIELD(encode_plane, n_stretches, 68, 4);

KC_BYTES(unit_made, 16);
KC_FIELD(unit_made, outcome, 0, 4);
KC_FIELD(unit_made, offset, 4, 4);
KC_FIELD(unit_made, n_bytes, 8, 4);
KC_FIELD(unit_made, row, 12, 4);

KC_BYTES(unit_place, 16);
KC_FIELD(unit_place, words, 0, 8);
KC_FIELD(unit_place, states, 8, 8);

KC_BYTES(encode_cursors, 8);
KC_FIELD(encode_cursors, n_chunks, 0, 4);
KC_FIELD(encode_cursors, n_output, 4, 4);

#undef KC_FIELD
#undef KC_BYTES

} // namespace kernels
