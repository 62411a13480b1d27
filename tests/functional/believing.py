"""Stands for Keystone in front of a Glance, as a filter of its pipeline: whoever asks is believed.

A token is ``user.project.role.role of a service that asks for the user``.
"""


def factory(_configuration, **_options):
    """Return the filter, as paste.deploy wants it."""
    def filtered(application):
        def answer(environ, start_response):
            user, project, role, service = environ.get('HTTP_X_AUTH_TOKEN', '...').split('.')
            roles = f'{role.replace("-", ",")},reader'
            environ.update(HTTP_X_IDENTITY_STATUS='Confirmed', HTTP_X_USER_ID=user,
                           HTTP_X_PROJECT_ID=project, HTTP_X_ROLES=roles,
                           HTTP_X_SERVICE_ROLES=service)
            return application(environ, start_response)
        return answer
    return filtered
