// Status codes and their thread-local message; the one place where C++ errors become C ones.
#pragma once

#include "cachegen.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace cachegen {

// thrown inside the library, never across the C interface
class error : public std::exception {
  public:
    error(cachegen_status status, std::string message) : status(status), message(std::move(message)) {}

    const char * what() const noexcept override { return message.c_str(); }

    cachegen_status status;
    std::string     message;
};

[[noreturn]]
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
void fail(cachegen_status status, const char * format, ...);

// keep the message for cachegen_last_message() and return the status
int32_t set_error(cachegen_status status, const char * message) noexcept;

// run `body` and turn whatever it throws into a status
template <typename Body> int32_t guard(Body && body) noexcept {
    try {
        body();
        return CACHEGEN_OK;
    } catch (const error & err) {
        return set_error(err.status, err.what());
    } catch (const std::bad_alloc &) {
        return set_error(CACHEGEN_ERR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception & err) {
        return set_error(CACHEGEN_ERR_INTERNAL, err.what());
    } catch (...) {
        return set_error(CACHEGEN_ERR_INTERNAL, "unknown C++ exception");
    }
}

} // namespace cachegen
