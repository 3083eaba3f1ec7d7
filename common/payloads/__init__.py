"""Values that JSON lacks: the form in which they are sent, and how a value of a declared type is
read from that form again. The room stands on nothing but the standard library; pydantic is used
where a program passes one of its models.
"""
