// See common.h.
#pragma once

#include <cstdio>

#define LOG(...) printf(__VA_ARGS__)
#define LOG_INF(...) printf(__VA_ARGS__)
#define LOG_ERR(...) printf(__VA_ARGS__)
