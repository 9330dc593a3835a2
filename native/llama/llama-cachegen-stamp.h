// What this libllama was built from. The build passes both values; see sources.cmake.
#pragma once

// "abi 1, patches 0123456789ab, llama.cpp 0123456789ab"
const char * llama_cachegen_stamp_string();
