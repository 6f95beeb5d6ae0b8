"""The host: a process that runs the routines of an app for a worker.

`python -m raddle.host shop.tasks:app` speaks the host protocol on descriptor 3. A worker starts it:
`raddle worker start --python shop.tasks:app`.
"""
