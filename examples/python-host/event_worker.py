"""The first example of Everwork: `raddle up` with the raddle.toml beside this file."""
import raddle_host as raddle


async def startup():
    ...


async def shutdown():
    ...


@raddle.routine
async def example(*args, **kwargs):
    print(args, kwargs)


if __name__ == "__main__":
    raddle.main(startup, shutdown)
