# SPDX-License-Identifier: Apache-2.0
# What can be chosen. Through pip: --config-settings=cmake.define.NAME=VALUE.

set(HPN_PARTS_THERE symmetric_memory)
set(HPN_PARTS_LATER multicore custom_ops)

set(HP_NATIVE_PARTS "${HPN_PARTS_THERE}" CACHE STRING "Parts to build, separated by commas or semicolons")
option(HP_NATIVE_STRICT "Fail where a part cannot be built; OFF leaves it out and records why" ON)
option(HP_NATIVE_WERROR "Treat warnings as errors" OFF)
option(HP_NATIVE_TESTS "Build native/tests/test_*.cpp and tell ctest of them" OFF)
set(HP_NATIVE_SANITIZE "" CACHE STRING "Sanitizers of a test build: address, undefined (may go together) or thread")

string(REPLACE "," ";" HPN_PARTS "${HP_NATIVE_PARTS}")
string(REPLACE "," ";" HPN_SANITIZERS "${HP_NATIVE_SANITIZE}")
list(REMOVE_DUPLICATES HPN_PARTS)

set(HPN_LEFT_OUT "{}")  # JSON: part -> reason

# Leaves `part` out for `reason`, or fails where that is not allowed.
function(hpn_leave_out part reason)
    if(HP_NATIVE_STRICT)
        message(FATAL_ERROR "hp-native: part ${part} cannot be built: ${reason}")
    endif()
    message(WARNING "hp-native: part ${part} is left out: ${reason}")
    hpn_json_string(text "${reason}")
    string(JSON HPN_LEFT_OUT SET "${HPN_LEFT_OUT}" "${part}" "${text}")
    list(REMOVE_ITEM HPN_PARTS "${part}")
    set(HPN_LEFT_OUT "${HPN_LEFT_OUT}" PARENT_SCOPE)
    set(HPN_PARTS "${HPN_PARTS}" PARENT_SCOPE)
endfunction()

# Sets `out` to `text` as a JSON string. Control characters (colours in a compiler's output) are dropped.
function(hpn_json_string out text)
    string(ASCII 27 escape)
    string(REGEX REPLACE "${escape}\\[[0-9;]*[a-zA-Z]" "" text "${text}")
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "\t" " " text "${text}")
    string(REPLACE "\r" "" text "${text}")
    string(REPLACE "\n" "\\n" text "${text}")
    set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

foreach(sanitizer IN LISTS HPN_SANITIZERS)
    if(NOT sanitizer MATCHES "^(address|undefined|thread)$")
        message(FATAL_ERROR "HP_NATIVE_SANITIZE=${HP_NATIVE_SANITIZE}: '${sanitizer}' is none of address, undefined, thread")
    endif()
endforeach()
if("thread" IN_LIST HPN_SANITIZERS AND "address" IN_LIST HPN_SANITIZERS)
    message(FATAL_ERROR "HP_NATIVE_SANITIZE=${HP_NATIVE_SANITIZE}: address and thread exclude each other; make two builds")
endif()

if(NOT HPN_PARTS)
    message(FATAL_ERROR "HP_NATIVE_PARTS is empty; the parts are: ${HPN_PARTS_THERE}. Without any, don't install hp-native")
endif()
foreach(part IN LISTS HPN_PARTS)
    if(part IN_LIST HPN_PARTS_LATER)
        hpn_leave_out("${part}" "this part is not there yet; the parts of hp-native ${HPN_VERSION} are: ${HPN_PARTS_THERE}")
    elseif(NOT part IN_LIST HPN_PARTS_THERE)
        message(FATAL_ERROR "HP_NATIVE_PARTS: there is no part '${part}'; the parts are: ${HPN_PARTS_THERE}")
    endif()
endforeach()

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
