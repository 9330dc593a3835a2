// What metal-cpp's definitions name and the codec does not call.
#include "objc_runtime.h"

#define NOT_CALLED(name)                                                                                               \
    extern "C" void * name() {                                                                                         \
        objc::broken("%s is called", #name);                                                                           \
    }

NOT_CALLED(MTLCreateSystemDefaultDevice)
NOT_CALLED(MTLCopyAllDevices)
NOT_CALLED(MTLCopyAllDevicesWithObserver)
NOT_CALLED(MTLRemoveDeviceObserver)
NOT_CALLED(_Block_object_assign)
NOT_CALLED(_Block_object_dispose)
NOT_CALLED(_Block_copy)
NOT_CALLED(_Block_release)

extern "C" void * _NSConcreteStackBlock[32];
void *            _NSConcreteStackBlock[32];
extern "C" void * _NSConcreteGlobalBlock[32];
void *            _NSConcreteGlobalBlock[32];
