#include "digest_body.h"

const cachegen::lcg3::digest_functions cachegen::lcg3::digest_avx2 = { digest_here, update_here };
