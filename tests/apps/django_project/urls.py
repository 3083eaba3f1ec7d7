from django.urls import path

from django_project.shop import views

urlpatterns = [
    path("orders", views.place_order),
    path("orders/<str:number>", views.show_order),
]
